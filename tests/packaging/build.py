"""Copies of the checkout, and the wheel that is built from one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_checkout(target: Path) -> Path:
    """Copy the tracked files to the new folder `target`, links as links; return it."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():  # chorale/synth and the like point to the folders at the top
            path.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            path.write_bytes((ROOT / name).read_bytes())
    return target


def build_wheel(folder: Path, python: Path | None = None) -> Path:
    """Build the wheel in `folder`, from a copy so that no build folders appear in the checkout; return its path.

    With the packages and the machine code that are here, or as `pip install .` does it with another `python`: with the
    packages that the build system asks for alone, downloaded, and with nothing built before.
    """
    source = copy_checkout(folder / "source")
    build = [python or sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(source)]
    environment = dict(os.environ)
    if python is None:
        (built,) = ROOT.glob(f"synth/kernels/native{sysconfig.get_config_var('EXT_SUFFIX')}")
        platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        target = source / f"build/lib.{platform}/chorale/synth/kernels" / built.name
        target.parent.mkdir(parents=True)
        shutil.copyfile(built, target)  # built for these sources by `make setup`: no second time
        build.append("--no-build-isolation")
    else:
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
    subprocess.run(build, check=True, capture_output=True, env=environment)
    (wheel,) = folder.glob("chorale_collectives-*.whl")
    return wheel
