"""What pyproject.toml cannot say: the native kernels, and what else is compiled."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from sysconfig import get_path

from setuptools import Extension, setup  # before distutils, which it provides
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py  # isort: split

from distutils.errors import CompileError

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

KERNELS = "chorale/synth/kernels/cpp"
ABI3 = sys.version_info >= (3, 12)
"""Whether one build does for all later versions of Python: nanobind needs the stable ABI of 3.12."""
SHIPPED_CODE = "chorale/runners/engine/shipped"


def kernels() -> Extension:
    files = sorted((ROOT / KERNELS).iterdir())
    sources = [f"{KERNELS}/{file.name}" for file in files if file.suffix == ".cpp"]
    headers = [f"{KERNELS}/{file.name}" for file in files if file.suffix == ".hpp"]
    return Extension("chorale.synth.kernels.native", sources, depends=headers, py_limited_api=ABI3)


class BuildKernels(build_ext):
    """Builds the kernels with the compiler that also builds the engine, on all cores; CXXFLAGS adds flags."""

    def build_extension(self, ext: Extension) -> None:
        import nanobind  # noqa: PLC0415 - only who builds needs it

        from chorale.runners.engine.build import NativeTarget, compile_native  # noqa: PLC0415 - from the folder above
        from chorale.synth.errors import Unavailable  # noqa: PLC0415 - as above
        from chorale.synth.identity import sources_id  # noqa: PLC0415 - as above

        binding = Path(nanobind.source_dir())
        includes = (Path(nanobind.include_dir()), binding.parent / "ext/robin_map/include", Path(get_path("include")))
        # Numbers wrap, and what is added up is rounded in the order of the text, whatever the processor has to offer.
        flags = ["-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off"]
        identity = sources_id(ROOT / KERNELS)
        flags += ["-DNDEBUG", f'-DCHORALE_SOURCES="{identity}"', *(["-DPy_LIMITED_API=0x030C0000"] if ABI3 else [])]
        flags += os.environ.get("CXXFLAGS", "").split()
        flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        path = Path(self.get_ext_fullpath(ext.name)).absolute()
        is_newer = path.exists() and path.stat().st_mtime > Path(__file__).stat().st_mtime
        if is_newer and not self.force and identity.encode() in path.read_bytes():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = (*(ROOT / source for source in ext.sources), binding / "nb_combined.cpp")
        try:
            compile_native(NativeTarget(path.name, sources, tuple(flags), includes), path)
        except Unavailable as error:
            raise CompileError(f"Chorale's kernels were not built: {error}") from error


class BuildWithCode(build_py):
    """Builds what the local runner executes into the wheel: the first run would wait for a compiler, or lack one."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and "sdist" not in sys.argv:
            _ship_native_code(Path(self.build_lib) / SHIPPED_CODE)
        if not self.editable_mode:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(
                ROOT / "examples", Path(self.build_lib) / "chorale/examples", ignore=ignored, dirs_exist_ok=True
            )


def _ship_native_code(folder: Path) -> None:
    """Build what the local runner and jobs need into `folder`; without a compiler it is built at first use."""
    from chorale.runners.engine.build import build_native, shipped_file  # noqa: PLC0415 - from the folder added above
    from chorale.runners.engine.library import engine_target, network_target  # noqa: PLC0415 - as above
    from chorale.runners.nccl.plugin import plugin_target  # noqa: PLC0415 - from the folder added above
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


def _compiler_needed() -> list[str]:
    """Return what pip is to fetch before it builds; whoever calls `setup.py build_ext` is told what is missing."""
    from chorale.runners.engine.build import has_compiler  # noqa: PLC0415 - from the folder added above

    return [] if has_compiler() or "build_ext" in sys.argv else ["ziglang"]


setup(
    ext_modules=[kernels()],
    cmdclass={"build_ext": BuildKernels, "build_py": BuildWithCode},
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if ABI3 else {},
    setup_requires=_compiler_needed(),
)
