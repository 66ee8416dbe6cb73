"""What pyproject.toml cannot say: the machine code of the kernels goes into the wheel, for any Python."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

LIBRARY = "chorale/synth/kernels/native/kernels.so"


class BuildWithKernels(build_py):
    """Builds the library of kernels beside its sources, where an editable install looks, and into the wheel."""

    def run(self) -> None:
        from chorale.runners.engine.kernels import build_or_warn  # noqa: PLC0415 - needs NumPy, which other commands do not

        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        if "sdist" not in sys.argv:
            build_or_warn((target / LIBRARY).absolute())


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


setup(
    distclass=NativeDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
    setup_requires=_compiler_needed(),
)
