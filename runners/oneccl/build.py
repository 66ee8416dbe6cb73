"""Finds the needed parts of oneCCL's packages and builds the interpreter: its sources and those of the engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE
from chorale.synth.errors import InvalidInput, Unavailable

Version = Literal["2021.17", "2022.2"]
"""Versions of oneCCL that this runner is tested with."""

VERSIONS: tuple[Version, ...] = get_args(Version)
DEFAULT_VERSION: Version = "2021.17"

_LIBFABRIC = {"impi-rt": "2021.17.2"}
PACKAGES: Mapping[Version, Mapping[str, str]] = {
    "2021.17": {"oneccl-devel": "2021.17.2", **_LIBFABRIC},
    "2022.2": {"oneccl-cpu-devel": "2022.2.0", **_LIBFABRIC},
}
"""Distributions that the parts come from, and their versions; constraints.txt pins the same."""

HASHES: Mapping[str, str] = {
    "impi_rt-2021.17.2-py2.py3-none-manylinux_2_28_x86_64.whl": (
        "f10206010456d77e5b55bf19045cbc2eac46d240373539416a4fecd8a52530c8"
    ),
    "oneccl_cpu_devel-2022.2.0-py2.py3-none-manylinux_2_28_x86_64.whl": (
        "44346f5758843b17a20d277048aa4eb3a2991029009182b00755c59265b85f0b"
    ),
    "oneccl_devel-2021.17.2-py2.py3-none-manylinux_2_28_x86_64.whl": (
        "6cdaaf12f04fa8eb7934f3b23c202410fece7ae05dfd3b8cc4219701726f1999"
    ),
}
"""SHA-256 of the wheels that the parts are taken from; no others are unpacked."""

INSTALL = "python -m chorale.runners.oneccl.install"

INCLUDE = "include"
ARCHIVE = "lib/ccl/cpu/lib/libccl.a"
LIBFABRIC = "lib/libfabric.so"
TCP_PROVIDER = "lib/libtcp-fi.so"
PARTS = (ARCHIVE, LIBFABRIC, TCP_PROVIDER)


@dataclass(frozen=True, slots=True)
class OneCclParts:
    """Where the parts lie under `root`, laid out as in the packages."""

    root: Path

    @property
    def include(self) -> Path:
        return self.root / INCLUDE

    @property
    def archive(self) -> Path:
        return self.root / ARCHIVE

    def runtime_files(self) -> dict[str, bytes]:
        """Return what a process of the interpreter needs beside itself, by the names that it is looked for."""
        libfabric = (self.root / LIBFABRIC).read_bytes()
        provider = (self.root / TCP_PROVIDER).read_bytes()
        return {"libfabric.so": libfabric, "libfabric.so.1": libfabric, "libtcp-fi.so": provider}


def parse_version(text: str) -> Version:
    """Return the version that `text` names. InvalidInput for any other."""
    for version in VERSIONS:
        if text == version:
            return version
    raise InvalidInput("version must be one of oneCCL that the runner knows", text, f"choose {' or '.join(VERSIONS)}")


def install_folder(version: Version) -> Path:
    """Return the folder where `chorale.runners.oneccl.install` puts the parts."""
    return Path(sys.prefix) / "share" / "chorale" / f"oneccl-{next(iter(PACKAGES[version].values()))}"


def find_parts(version: Version = DEFAULT_VERSION) -> OneCclParts:
    """Return the parts that are installed, by `chorale.runners.oneccl.install` or, as packages, by pip."""
    for root in (install_folder(version), Path(sys.prefix)):
        if _has_headers(root / INCLUDE / "oneapi", version) and all((root / part).exists() for part in PARTS):
            return OneCclParts(root)
    rule = f"the oneCCL runner needs the static library of oneCCL {version} and libfabric"
    raise Unavailable(rule, "neither is installed", f"run: {INSTALL}")


def _has_headers(folder: Path, version: Version) -> bool:
    """Return whether the headers in `folder` are of `version`: packages of both put theirs into one folder."""
    config = folder / "ccl" / "config.h"
    words = config.read_text().split() if config.exists() else []
    numbers = [words[words.index(f"CCL_{part}_VERSION") + 1] for part in ("MAJOR", "MINOR")] if words else []
    return ".".join(numbers) == version


SOURCES = Path(__file__).parent / "interpreter"
INTERPRETER = "interpreter"
"""Name of the executable."""

_LINKED = ("-Wl,--wrap=socket", "-ldl", "-lpthread", "-lrt")


def build_interpreter(home: Path, version: Version = DEFAULT_VERSION) -> Path:
    """Return the interpreter's executable, built under `home` first if that was not done before.

    Raises Unavailable, with the command that helps, without a compiler or oneCCL's packages.
    """
    parts = find_parts(version)
    sources = (*sorted(SOURCES.glob("*.cpp")), *sorted(NATIVE.glob("*.cpp")))
    target = NativeTarget(
        INTERPRETER,
        sources,
        flags=("-O3", "-s"),
        includes=(SOURCES, NATIVE, parts.include),
        linked=(str(parts.archive), *_LINKED),
    )
    return build_native(target, home)
