"""Builds the machine code of the kernels of synthesis from their text: `python -m chorale.runners.engine.kernels`.

The library lies beside the sources. It knows no Python, so one serves all versions.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, compile_native
from chorale.synth.errors import Unavailable
from chorale.synth.kernels.compiled import KERNELS
from chorale.synth.kernels.library import LIBRARY, library_state
from chorale.synth.kernels.sources import NATIVE, digest, kernel_modules, source_files
from chorale.synth.kernels.translation.program import program_text

# Numbers wrap, and what is added up is rounded in the order of the text, whatever the processor has to offer.
_FLAGS = ("-O3", "-fPIC", "-shared", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden")


def kernels_text() -> str:
    """Return C++ for all kernels."""
    for module in kernel_modules():
        importlib.import_module(module)
    files = source_files()
    return program_text(KERNELS, "\n".join([digest(files), *files]))


def build_kernels(library: Path = LIBRARY, flags: tuple[str, ...] = ()) -> None:
    """Write the library. Unavailable without a compiler, or if it fails."""
    compile_program(kernels_text(), library, flags)


def compile_program(text: str, library: Path, flags: tuple[str, ...] = ()) -> None:
    """Write the library of a translated program. Unavailable without a compiler, or if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cpp"
        source.write_text(text)
        compile_native(NativeTarget(library.name, (source,), (*_FLAGS, *flags), (NATIVE,)), library)


def build_or_warn(library: Path = LIBRARY) -> None:
    """Write the library, from the one beside the sources if that is theirs; where it cannot be built kernels run as
    Python, so that is a warning only."""
    try:
        if library != LIBRARY and library_state() == "ready":
            shutil.copyfile(LIBRARY, library)
        else:
            build_kernels(library)
    except (Unavailable, OSError) as error:
        print(f"warning: kernels run in Python, ten times slower and more: {error}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    build_or_warn()
