"""Downloads and installs the necessary files of oneCCL's packages: 20 MB instead of several gigabytes.

`python -P -m chorale.runners.oneccl.install` installs them in the folder of this Python installation.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE
from chorale.synth.errors import ChoraleError, Unavailable

VERSION = "2021.17"
"""The oneCCL version with which this runner is tested."""

PACKAGES: Mapping[str, str] = {"oneccl-devel": "2021.17.2", "impi-rt": "2021.17.2"}
"""Package -> version, for the packages that contain oneCCL's files. constraints.txt pins the same versions."""

HASHES: Mapping[str, str] = {
    "oneccl-devel": "6cdaaf12f04fa8eb7934f3b23c202410fece7ae05dfd3b8cc4219701726f1999",
    "impi-rt": "f10206010456d77e5b55bf19045cbc2eac46d240373539416a4fecd8a52530c8",
}
"""SHA-256 of the packages' wheels for Linux on x86-64; wheels with other hashes are not installed."""

INSTALL = "python -P -m chorale.runners.oneccl.install"

INCLUDE = "include"
ARCHIVE = "lib/ccl/cpu/lib/libccl.a"
LIBFABRIC = "lib/libfabric.so"
TCP_PROVIDER = "lib/libtcp-fi.so"
PARTS = (ARCHIVE, LIBFABRIC, TCP_PROVIDER)
_LIMIT_S = 600.0


def install_folder() -> Path:
    """Return the folder in which `chorale.runners.oneccl.install` installs oneCCL's files."""
    return Path(sys.prefix) / "share" / "chorale" / f"oneccl-{PACKAGES['oneccl-devel']}"


def find_parts() -> Path:
    """Return the folder where this module or pip has installed oneCCL's files. Raises Unavailable if there is none."""
    for root in (install_folder(), Path(sys.prefix)):
        config = root / INCLUDE / "oneapi" / "ccl" / "config.h"  # pip may have installed another version
        words = config.read_text().split() if config.exists() else []
        numbers = [words[words.index(f"CCL_{part}_VERSION") + 1] for part in ("MAJOR", "MINOR")] if words else []
        if ".".join(numbers) == VERSION and all((root / part).exists() for part in PARTS):
            return root
    rule = f"the oneCCL runner needs the static library of oneCCL {VERSION} and libfabric"
    raise Unavailable(rule, "neither is installed", f"run: {INSTALL}")


def runtime_files() -> dict[str, bytes]:
    """Return the files of oneCCL that a rank needs: name under which the rank loads the file -> content."""
    root = find_parts()
    libfabric = (root / LIBFABRIC).read_bytes()
    return {"libfabric.so": libfabric, "libfabric.so.1": libfabric, "libtcp-fi.so": (root / TCP_PROVIDER).read_bytes()}


SOURCES = Path(__file__).parent / "native"


def build_library() -> Path:
    """Return the path of the library built from native/oneccl.cpp; build it first if necessary.

    Raises Unavailable, with a command that installs what is missing, if there is no compiler or no oneCCL package.
    """
    root = find_parts()
    target = NativeTarget(
        "libchorale_oneccl.so",
        tuple(sorted(SOURCES.glob("*.cpp"))),
        flags=("-O3", "-s", "-shared", "-fPIC"),
        includes=(NATIVE, root / INCLUDE),
        linked=(str(root / ARCHIVE), "-Wl,--wrap=socket", "-ldl", "-lpthread", "-lrt"),
    )
    return build_native(target)


def install(target: Path) -> None:
    """Download the packages and install the necessary files in the folder `target`. Raises Unavailable on failure."""
    if all((target / part).exists() for part in PARTS):
        return
    with tempfile.TemporaryDirectory(prefix="chorale-") as name:
        folder, required = Path(name), Path(name) / "requirements.txt"
        lines = (f"{each}=={version} --hash=sha256:{HASHES[each]}\n" for each, version in PACKAGES.items())
        required.write_text("".join(lines))
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--prefix", name, "--requirement", str(required)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise Unavailable("the download of oneCCL's packages took too long: {}", error, "try again") from error
        if done.returncode:
            reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no reason given"]
            rule = "pip cannot install oneCCL's packages (for Linux on x86-64): {}"
            raise Unavailable(rule, reason[0], f"see: {' '.join(command[1:])}")
        headers = Path(INCLUDE) / "oneapi"
        shutil.copytree(folder / headers, target / headers, dirs_exist_ok=True)
        for part in PARTS:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / part, target / part)


if __name__ == "__main__":
    try:
        install(install_folder())
    except ChoraleError as failure:
        sys.exit(f"error: {failure}")
