"""What pyproject.toml cannot say: machine code in the wheel, for any Python, and manual pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, setup  # before distutils, which it provides
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py  # isort: split

from distutils.command.install_data import install_data

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

LIBRARY = "chorale/synth/kernels/native/kernels.so"
SHIPPED_CODE = "chorale/runners/engine/shipped"
SHARED = "build/shared"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


class BuildWithKernels(build_py):
    """Builds the library of kernels beside its sources, where an editable install looks, and into the wheel, which also
    gets what the local runner executes: without it the first run would wait for a compiler, or lack one."""

    def run(self) -> None:
        from chorale.runners.engine.kernels import build_or_warn  # noqa: PLC0415 - needs NumPy, which other commands do not

        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        if "sdist" not in sys.argv:
            build_or_warn((target / LIBRARY).absolute())
        if not self.editable_mode and "sdist" not in sys.argv:
            _ship_native_code(target / SHIPPED_CODE)
        if not self.editable_mode:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "examples", target / "chorale/examples", ignore=ignored, dirs_exist_ok=True)


def _ship_native_code(folder: Path) -> None:
    """Build what the local runner and jobs need into `folder`; without a compiler it is built at first use."""
    from chorale.job.nccl.plugin import plugin_target  # noqa: PLC0415 - from the folder added above
    from chorale.runners.engine.build import build_native, shipped_file  # noqa: PLC0415 - from the folder added above
    from chorale.runners.engine.library import engine_target  # noqa: PLC0415 - as above
    from chorale.runners.local.network_target import network_target  # noqa: PLC0415 - as above
    from chorale.synth.errors import Unavailable  # noqa: PLC0415 - as above

    for code in (engine_target(), network_target(), plugin_target()):
        path = shipped_file(code, folder)
        try:
            built = build_native(code)
        except Unavailable as error:
            print(f"warning: {code.name} is built at first use: {error}", file=sys.stderr)  # noqa: T201
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, path)


class NativeDistribution(Distribution):
    """What belongs to one platform."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """The library knows a platform, and no Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _compiler_needed() -> list[str]:
    from chorale.runners.engine.build import has_compiler  # noqa: PLC0415 - from the folder added above

    return [] if has_compiler() else ["ziglang"]


class InstallManual(install_data):
    """Installs manual pages and completions, which the built command writes itself."""

    def run(self) -> None:
        built = self.get_finalized_command("build").build_lib
        command = [sys.executable, "-m", "chorale.tuner.cli.manual", str(ROOT / SHARED), VERSION]
        subprocess.run(command, check=True, cwd=built)  # noqa: S603 - our own, as it was built
        folders: dict[str, list[str]] = {}
        for path in sorted((ROOT / SHARED).rglob("*")):
            if path.is_file():
                folder = path.parent.relative_to(ROOT / SHARED).as_posix()
                folders.setdefault(folder, []).append(path.relative_to(ROOT).as_posix())
        self.data_files = list(folders.items())
        super().run()


setup(
    distclass=NativeDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel, "install_data": InstallManual},
    setup_requires=_compiler_needed(),
    data_files=[("share/man/man1", [])],  # written by `install_data`
)
