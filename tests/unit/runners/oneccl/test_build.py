"""What the library is built from and where it is kept; the live tests build the real one."""

import hashlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from chorale.runners.oneccl import install
from chorale.runners.oneccl import install as build
from chorale.runners.oneccl.install import build_library
from chorale.synth.errors import InvalidInput, Unavailable

ROOT = Path(__file__).parents[4]


def _wheel(folder: Path, name: str, members: dict[str, str]) -> Path:
    path = folder / f"{name}-1.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(f"{name}-1.data/data/{member}", content)
        archive.writestr(f"{name}-1.dist-info/METADATA", "x")
    return path


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack stand-ins of the packages, and let them be found."""
    root = tmp_path / "share"
    config = "#define CCL_MAJOR_VERSION 2021\n#define CCL_MINOR_VERSION 17\n"
    devel = {"include/oneapi/ccl/config.h": config, "lib/ccl/cpu/lib/libccl.a": "archive", "lib/libccl.a": "for GPUs"}
    runtime = {"lib/libfabric.so": "fabric", "lib/libtcp-fi.so": "tcp", "lib/libmpi.so": "mpi", "bin/mpiexec": "x"}
    install.unpack(_wheel(tmp_path, "devel", devel), root)
    install.unpack(_wheel(tmp_path, "runtime", runtime), root)
    monkeypatch.setattr(build, "install_folder", lambda version: root)
    monkeypatch.setattr(sys, "prefix", str(root))
    return root


def test_only_what_is_needed_is_unpacked(parts: Path) -> None:
    files = {str(path.relative_to(parts)) for path in parts.rglob("*") if path.is_file()}
    assert files == {"include/oneapi/ccl/config.h", "lib/ccl/cpu/lib/libccl.a", "lib/libfabric.so", "lib/libtcp-fi.so"}
    assert build.find_parts().runtime_files() == {
        "libfabric.so": b"fabric",
        "libfabric.so.1": b"fabric",
        "libtcp-fi.so": b"tcp",
    }


def test_headers_of_another_version_are_not_taken(parts: Path) -> None:
    with pytest.raises(Unavailable, match=r"static library of oneCCL 2022\.2 "):
        build.find_parts("2022.2")


def test_unknown_versions_are_refused() -> None:
    assert [build.parse_version(version) for version in build.VERSIONS] == list(build.VERSIONS)
    with pytest.raises(InvalidInput, match="the runner does not support oneCCL 2019"):
        build.parse_version("2019")


def test_every_version_is_unpacked_from_its_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(folder: Path, packages: list[tuple[str, str]]) -> None:
        for name, version in packages:
            files = {"lib/libfabric.so": "fabric"} if name == "impi-rt" else {build.ARCHIVE: name}
            _wheel(folder, f"{name.replace('-', '_')}-{version}", files)

    monkeypatch.setattr(install, "_download", download)
    monkeypatch.setattr(install, "check_hash", lambda wheel: None)  # these are stand-ins
    targets = {version: tmp_path / version for version in build.VERSIONS}
    install.install(targets)
    archives = [(target / build.ARCHIVE).read_text() for target in targets.values()]
    assert archives == ["oneccl-devel", "oneccl-cpu-devel"]
    assert all((target / build.LIBFABRIC).exists() for target in targets.values())


def test_a_package_that_is_no_wheel_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="oneCCL has no wheels for this system: impi-rt"):
        install.wheel_in(tmp_path, "impi-rt", "1.0")


def test_missing_parts_are_unavailable_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "install_folder", lambda version: tmp_path)
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


def test_a_failed_download_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Looking\nERROR: No matching distribution\n")
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(Unavailable, match=r"pip cannot get oneCCL's packages \(for Linux on x86-64\):"):
        install.install({"2021.17": tmp_path})


def test_what_is_installed_is_not_downloaded_again(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(install.subprocess, "run", lambda *command, **__: started.append(command))
    install.install({"2021.17": parts})
    assert started == []


def test_constraints_and_extra_name_the_same_packages() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    for packages in build.PACKAGES.values():
        assert {f"{name}=={version}" for name, version in packages.items()} <= set(pins)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {requirement.split(">")[0] for requirement in extras["oneccl"]} == set(build.PACKAGES["2021.17"])


OUTSIDE = "../" * 12


@pytest.mark.parametrize("name", [f"include/oneapi/{OUTSIDE}planted.h", "include/oneapi/../../../planted.h"])
def test_a_crafted_wheel_stays_inside(tmp_path: Path, name: str) -> None:
    wheel, target = tmp_path / "a.whl", tmp_path / "target"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"a-1.data/data/{name}", b"planted")
    with pytest.raises(InvalidInput, match="which lies outside its folder"):
        install.unpack(wheel, target / "include")
    assert not list(tmp_path.rglob("planted.h"))


def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    wheel, target = tmp_path / "a.whl", tmp_path / "target"
    (target / "include").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (target / "include" / "oneapi").symlink_to(tmp_path / "elsewhere")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.data/data/include/oneapi/a.h", b"planted")
    with pytest.raises(InvalidInput, match="which lies outside its folder"):
        install.unpack(wheel, target)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_wheel_with_other_bytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in build.HASHES if name.startswith(("oneccl_devel", "impi_rt"))]

    def download(folder: Path, packages: object) -> None:
        for name in names:
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr(f"a-1.data/data/{build.ARCHIVE}", b"another library")

    monkeypatch.setattr(install, "_download", download)
    with pytest.raises(Unavailable, match="SHA-256"):
        install.install({"2021.17": tmp_path / "target"})
    assert not (tmp_path / "target").exists()


def test_every_package_that_is_downloaded_has_a_hash() -> None:
    pins = {(name.replace("-", "_"), number) for group in build.PACKAGES.values() for name, number in group.items()}
    assert pins == {tuple(name.split("-")[:2]) for name in build.HASHES}
    assert all(len(bytes.fromhex(digest)) == hashlib.sha256().digest_size for digest in build.HASHES.values())
