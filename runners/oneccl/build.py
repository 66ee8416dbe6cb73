"""Finds the needed parts of oneCCL's packages and builds the interpreter from its sources.

It is built once for each version of its sources, of oneCCL and of the compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
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


SOURCES = Path(__file__).parent / "interpreter"
LOG = "build.log"

_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-s")
_LINKED = ("-Wl,--wrap=socket", "-ldl", "-lpthread", "-lrt")
_LIMIT_S = 300.0
COMPILERS = ("g++", "clang++", "c++")


def build_interpreter(home: Path) -> Path:
    """Return the interpreter's executable, built first if that was not done before.

    It lies in a folder under `home` that is named by the content of all that it is made from, beside the log of its
    build. Raises Unavailable, with the command that helps, without a compiler or oneCCL's packages.
    """
    parts, compiler = find_parts(), _compiler()
    folder = home / "oneccl" / _key(parts, compiler)
    if not (folder / "interpreter").exists():
        _build(parts, compiler, folder)
    return folder / "interpreter"


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    found = shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        rule = "the oneCCL runner needs a C++ compiler, to build its interpreter"
        way_out = "install one, for example: apt-get install g++ (or dnf install gcc-c++)"
        raise Unavailable(rule, f"CXX={chosen}" if chosen else f"none of {', '.join(COMPILERS)}", way_out)
    return found


def _key(parts: OneCclParts, compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout  # noqa: S603
    digest = hashlib.sha256(version)
    digest.update(repr((_FLAGS, _LINKED)).encode())
    for path in (*sorted(SOURCES.iterdir()), parts.archive):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _build(parts: OneCclParts, compiler: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
        program, everything = Path(work) / "interpreter", Path(work) / "everything.cpp"
        # As one unit: the headers of oneCCL take longest and are read once.
        everything.write_text("".join(f'#include "{path.name}"\n' for path in sorted(SOURCES.glob("*.cpp"))))
        folders = (f"-I{SOURCES}", f"-I{parts.include}")
        command = [compiler, *_FLAGS, *folders, str(everything), str(parts.archive), *_LINKED, "-o", str(program)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise Unavailable("the interpreter must be built in time", error, "try again") from error
        (folder / LOG).write_text(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            way_out = "its last lines say why; CXX chooses another compiler"
            raise Unavailable("the interpreter must compile and link", f"see {folder / LOG}", way_out)
        program.replace(folder / "interpreter")
