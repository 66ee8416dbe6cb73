"""What is needed of oneCCL's packages: headers, the static library for CPUs, and libfabric with its TCP provider."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chorale.synth.errors import Unavailable

VERSIONS: Mapping[str, str] = {"oneccl-devel": "2021.17.2", "impi-rt": "2021.17.2"}
"""Distributions and the versions that this runner is tested with; constraints.txt pins the same."""

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


def install_folder() -> Path:
    """Return the folder where `chorale.runners.oneccl.install` puts the parts."""
    return Path(sys.prefix) / "share" / "chorale" / f"oneccl-{VERSIONS['oneccl-devel']}"


def find_parts() -> OneCclParts:
    """Return the parts that are installed, by `chorale.runners.oneccl.install` or by the extra `oneccl`."""
    roots = (install_folder(), Path(sys.prefix))
    for root in roots:
        if (root / INCLUDE / "oneapi" / "ccl.hpp").exists() and all((root / part).exists() for part in PARTS):
            return OneCclParts(root)
    rule = "the oneCCL runner needs the static library of oneCCL and libfabric"
    raise Unavailable(rule, "neither is installed", f"run: {INSTALL}")
