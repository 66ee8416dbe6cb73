"""Fetch the parts of oneCCL's packages that are needed: 45 MB instead of the gigabytes that the packages bring along.

`python -m chorale.runners.oneccl.install` puts them beside this Python installation, for every version that the runner
knows or for those that are named.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from chorale.runners.oneccl.build import (
    HASHES,
    INCLUDE,
    PACKAGES,
    PARTS,
    VERSIONS,
    Version,
    install_folder,
    parse_version,
)
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable

_LIMIT_S = 600.0


def install(targets: Mapping[Version, Path]) -> None:
    """Download the packages and put what is needed of each version under its folder. Unavailable if that fails."""
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
    """Return the wheel of a distribution that lies in `folder`. Unavailable if there is none."""
    wheels = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not wheels:
        raise Unavailable("oneCCL's packages must come as wheels", f"none of {name} {version}", "use Linux on x86-64")
    return wheels[0]


def unpack(wheel: Path, target: Path) -> None:
    """Put the needed files of `wheel` under `target`, as their installation would lay them out."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            _, _, name = member.partition(".data/data/")
            if name in PARTS or (name.startswith(f"{INCLUDE}/oneapi/") and not name.endswith("/")):
                path = _inside(target, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))


def check_hash(wheel: Path) -> None:
    """Raise Unavailable unless `wheel` has the bytes of the wheel that the runner is tested with."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if HASHES.get(wheel.name) != digest:
        rule = "oneCCL's packages must be those that the runner is tested with"
        raise Unavailable(rule, f"{wheel.name} with SHA-256 {digest}", "use an index that serves the original files")


def _inside(target: Path, name: str) -> Path:
    """Return the path of `name` under `target`, links followed; InvalidInput if it is elsewhere."""
    root = target.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise InvalidInput("a package must stay inside its folder", name, "get it from an index that you trust")
    return path


def _download(folder: Path, packages: Sequence[tuple[str, str]]) -> None:
    names = [f"{name}=={version}" for name, version in packages]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise Unavailable("oneCCL's packages must be downloaded in time", error, "try again") from error
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no reason given"]
        rule = "oneCCL's packages must be available to pip (Linux on x86-64)"
        raise Unavailable(rule, reason[0], f"see: {' '.join(command[1:])}")


if __name__ == "__main__":
    try:
        install({version: install_folder(version) for version in map(parse_version, sys.argv[1:] or VERSIONS)})
    except ChoraleError as failure:
        sys.exit(f"error: {failure}")
