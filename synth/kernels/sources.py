"""What the library of kernels is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
"""The folder of headers and of the library."""

_PACKAGE = Path(__file__).parents[1]
_MARK = b"chorale.synth.kernels.compiled import"


def kernel_files() -> list[Path]:
    """Return the files of this package that have kernels or helpers of kernels."""
    files = (file for file in _PACKAGE.rglob("*.py") if "translation" not in file.parts)
    return sorted(file for file in files if _MARK in file.read_bytes())


def kernel_modules() -> Iterator[str]:
    """Yield the names of the modules in those files."""
    for file in kernel_files():
        yield ".".join(("chorale.synth", *file.relative_to(_PACKAGE).with_suffix("").parts))


def source_files() -> list[str]:
    """Return all files that decide what the library does, relative to this package, in the same order everywhere."""
    kernels = Path(__file__).parent
    others = [*kernels.glob("translation/*.py"), *NATIVE.glob("*.hpp"), kernels / "types.py"]
    return sorted(file.relative_to(_PACKAGE).as_posix() for file in {*kernel_files(), *others})


def digest(files: Sequence[str]) -> str:
    """Return the SHA-256 of these files of the package; one that is missing counts as empty."""
    result = hashlib.sha256()
    for name in files:
        file = _PACKAGE / name
        text = file.read_bytes() if file.is_file() else b""
        result.update(f"{name} {len(text)}\n".encode() + text)
    return result.hexdigest()
