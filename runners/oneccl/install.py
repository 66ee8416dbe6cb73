"""Download and install the necessary parts of oneCCL's packages: 45 MB instead of several gigabytes.

`python -P -m chorale.runners.oneccl.install` installs them next to this Python, for the given versions or for all
versions that the runner supports.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable

Version = Literal["2021.17", "2022.2"]
"""oneCCL versions with which this runner is tested."""

VERSIONS: tuple[Version, ...] = get_args(Version)
DEFAULT_VERSION: Version = "2021.17"

_LIBFABRIC = {"impi-rt": "2021.17.2"}
PACKAGES: Mapping[Version, Mapping[str, str]] = {
    "2021.17": {"oneccl-devel": "2021.17.2", **_LIBFABRIC},
    "2022.2": {"oneccl-cpu-devel": "2022.2.0", **_LIBFABRIC},
}
"""Packages from which the parts come, and their versions; constraints.txt pins the same versions."""

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
"""SHA-256 of the wheels with the parts; other wheels are not unpacked."""

INSTALL = "python -P -m chorale.runners.oneccl.install"

INCLUDE = "include"
ARCHIVE = "lib/ccl/cpu/lib/libccl.a"
LIBFABRIC = "lib/libfabric.so"
TCP_PROVIDER = "lib/libtcp-fi.so"
PARTS = (ARCHIVE, LIBFABRIC, TCP_PROVIDER)


@dataclass(frozen=True, slots=True)
class OneCclParts:
    """Paths of the parts under `root`, laid out as in the packages."""

    root: Path

    def runtime_files(self) -> dict[str, bytes]:
        """Return the files that a rank needs in addition to our libraries, by the names under which they are loaded."""
        libfabric = (self.root / LIBFABRIC).read_bytes()
        provider = (self.root / TCP_PROVIDER).read_bytes()
        return {"libfabric.so": libfabric, "libfabric.so.1": libfabric, "libtcp-fi.so": provider}


def parse_version(text: str) -> Version:
    """Return the version that `text` names. Raises InvalidInput for an unsupported version."""
    if (found := next((version for version in VERSIONS if text == version), None)) is not None:
        return found
    raise InvalidInput("the runner does not support oneCCL {}", text, f"choose {' or '.join(VERSIONS)}")


def install_folder(version: Version) -> Path:
    """Return the folder in which `chorale.runners.oneccl.install` installs the parts."""
    return Path(sys.prefix) / "share" / "chorale" / f"oneccl-{next(iter(PACKAGES[version].values()))}"


def find_parts(version: Version = DEFAULT_VERSION) -> OneCclParts:
    """Return the parts, installed by `chorale.runners.oneccl.install` or by pip. Raises Unavailable without them."""
    for root in (install_folder(version), Path(sys.prefix)):
        config = root / INCLUDE / "oneapi" / "ccl" / "config.h"  # both versions install into the same folder
        words = config.read_text().split() if config.exists() else []
        numbers = [words[words.index(f"CCL_{part}_VERSION") + 1] for part in ("MAJOR", "MINOR")] if words else []
        if ".".join(numbers) == version and all((root / part).exists() for part in PARTS):
            return OneCclParts(root)
    rule = f"the oneCCL runner needs the static library of oneCCL {version} and libfabric"
    raise Unavailable(rule, "neither is installed", f"run: {INSTALL}")


SOURCES = Path(__file__).parent / "native"


def build_library(version: Version = DEFAULT_VERSION) -> Path:
    """Return the path of the library built from native/oneccl.cpp; build it first if necessary.

    Raises Unavailable, with a command as a fix, if a compiler or oneCCL's packages are missing.
    """
    parts = find_parts(version)
    target = NativeTarget(
        "libchorale_oneccl.so",
        tuple(sorted(SOURCES.glob("*.cpp"))),
        flags=("-O3", "-s", "-shared", "-fPIC"),
        includes=(NATIVE, parts.root / INCLUDE),
        linked=(str(parts.root / ARCHIVE), "-Wl,--wrap=socket", "-ldl", "-lpthread", "-lrt"),
    )
    return build_native(target)


_LIMIT_S = 600.0


def install(targets: Mapping[Version, Path]) -> None:
    """Download the packages and install the necessary parts of each version in its folder. Raises Unavailable on
    failure.
    """
    missing = [version for version, target in targets.items() if not all((target / part).exists() for part in PARTS)]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="chorale-") as folder:
        packages = {package for version in missing for package in PACKAGES[version].items()}
        _download(Path(folder), sorted(packages))
        for version in missing:
            for name, number in PACKAGES[version].items():
                wheel = wheel_in(Path(folder), name, number)
                check_hash(wheel)
                unpack(wheel, targets[version])


def wheel_in(folder: Path, name: str, version: str) -> Path:
    """Return a distribution's wheel in `folder`. Raises Unavailable if there is none."""
    wheels = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not wheels:
        raise Unavailable("oneCCL has no wheels for this system: {}", f"{name} {version}", "use Linux on x86-64")
    return wheels[0]


def unpack(wheel: Path, target: Path) -> None:
    """Extract the needed files of `wheel` to `target`, with the paths that pip would give them."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            _, _, name = member.partition(".data/data/")
            if name in PARTS or (name.startswith(f"{INCLUDE}/oneapi/") and not name.endswith("/")):
                path = (target.resolve() / name).resolve()
                if not path.is_relative_to(target.resolve()):
                    rule = "the package contains {}, which lies outside its folder"
                    raise InvalidInput(rule, name, "get it from an index that you trust")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))


def check_hash(wheel: Path) -> None:
    """Raise Unavailable unless `wheel` has the hash of the wheel with which the runner is tested."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if HASHES.get(wheel.name) != digest:
        rule = "a package of oneCCL is not the one that the runner is tested with: {}"
        raise Unavailable(rule, f"{wheel.name} with SHA-256 {digest}", "use an index that serves the original files")


def _download(folder: Path, packages: Sequence[tuple[str, str]]) -> None:
    names = [f"{name}=={version}" for name, version in packages]
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise Unavailable("the download of oneCCL's packages took too long: {}", error, "try again") from error
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no reason given"]
        rule = "pip cannot get oneCCL's packages (for Linux on x86-64): {}"
        raise Unavailable(rule, reason[0], f"see: {' '.join(command[1:])}")


if __name__ == "__main__":
    try:
        install({version: install_folder(version) for version in map(parse_version, sys.argv[1:] or VERSIONS)})
    except ChoraleError as failure:
        sys.exit(f"error: {failure}")
