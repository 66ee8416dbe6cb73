"""What the library is built from and where it is kept; the live tests build the real one."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chorale.runners.oneccl import install, install as build
from chorale.runners.oneccl.install import build_library
from chorale.synth.errors import Unavailable

ROOT = Path(__file__).parents[4]


CONFIG = "#define CCL_MAJOR_VERSION 2021\n#define CCL_MINOR_VERSION 17\n"
INSTALLED = {
    "include/oneapi/ccl/config.h": CONFIG, "lib/ccl/cpu/lib/libccl.a": "archive", "lib/libccl.a": "for GPUs",
    "lib/libfabric.so": "fabric", "lib/libtcp-fi.so": "tcp", "lib/libmpi.so": "mpi", "bin/mpiexec": "x",
}  # fmt: skip


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the parts of stand-ins of the packages, and let them be found."""
    root = tmp_path / "share"

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        prefix = Path(command[command.index("--prefix") + 1])
        required = Path(command[-1]).read_text()
        assert all(f"{name}=={version} --hash=sha256:" in required for name, version in install.PACKAGES.items())
        for name, content in INSTALLED.items():
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            (prefix / name).write_text(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    with monkeypatch.context() as patch:
        patch.setattr(install.subprocess, "run", pip)
        install.install(root)
    monkeypatch.setattr(build, "install_folder", lambda: root)
    monkeypatch.setattr(sys, "prefix", str(root))
    return root


def test_only_what_is_needed_is_installed_and_once(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {str(path.relative_to(parts)) for path in parts.rglob("*") if path.is_file()}
    assert files == {"include/oneapi/ccl/config.h", "lib/ccl/cpu/lib/libccl.a", "lib/libfabric.so", "lib/libtcp-fi.so"}
    assert build.runtime_files() == dict.fromkeys(("libfabric.so", "libfabric.so.1"), b"fabric") | {
        "libtcp-fi.so": b"tcp"
    }
    monkeypatch.setattr(install.subprocess, "run", None)
    install.install(parts)


def test_missing_parts_and_those_of_another_version_are_unavailable_with_the_command(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build, "VERSION", "2022.2")
        with pytest.raises(Unavailable, match=r"static library of oneCCL 2022\.2 "):
            build.find_parts()
    monkeypatch.setattr(build, "install_folder", lambda: tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(Unavailable, match=r"run: python -P -m chorale\.runners\.oneccl\.install"):
        build.find_parts()


def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo 1\n{script}\n')
    path.chmod(0o700)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


COPY = 'while [ $# -gt 1 ]; do shift; done; echo "#built" > "$1"; echo "warning: odd"; echo $1 >> "${0%/*}/calls"'


def test_whatever_it_is_made_from_changes_its_folder(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(tmp_path, monkeypatch, COPY)
    first = build_library()
    (parts / build.ARCHIVE).write_text("another archive")
    second = build_library()
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "other.cpp").write_text("int other;")
    monkeypatch.setattr(build, "SOURCES", sources)
    third = build_library()
    assert len({first, second, third}) == 3


def test_a_failed_download_says_what_pip_said_and_constraints_and_extra_name_the_same_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Looking\nERROR: No matching distribution\n")
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(Unavailable, match=r"pip cannot install oneCCL's packages \(for Linux on x86-64\):"):
        install.install(tmp_path)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert {f"{name}=={version}" for name, version in build.PACKAGES.items()} <= set(pins)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {requirement.split(">")[0] for requirement in extras["oneccl"]} == set(build.PACKAGES) == set(build.HASHES)
