"""Fetch the parts of oneCCL's packages that are needed: 20 MB instead of the 1.3 GB that the packages bring along.

`python -m chorale.runners.oneccl.install` puts them beside this Python installation.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from chorale.runners.oneccl.build import INCLUDE, PARTS, VERSIONS, install_folder
from chorale.synth.errors import ChoraleError, Unavailable

_LIMIT_S = 600.0


def install(target: Path) -> None:
    """Download the packages and put what is needed of them under `target`. Unavailable if that fails."""
    if all((target / part).exists() for part in PARTS):
        return
    with tempfile.TemporaryDirectory(prefix="chorale-") as folder:
        _download(Path(folder))
        target.mkdir(parents=True, exist_ok=True)
        for wheel in Path(folder).glob("*.whl"):
            unpack(wheel, target)


def unpack(wheel: Path, target: Path) -> None:
    """Put the needed files of `wheel` under `target`, as their installation would lay them out."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            _, _, name = member.partition(".data/data/")
            if name in PARTS or (name.startswith(f"{INCLUDE}/oneapi/") and not name.endswith("/")):
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))


def _download(folder: Path) -> None:
    wanted = [f"{name}=={version}" for name, version in VERSIONS.items()]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *wanted]
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
        install(install_folder())
    except ChoraleError as failure:
        sys.exit(f"error: {failure}")
