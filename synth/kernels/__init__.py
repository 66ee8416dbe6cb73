"""Contains the C++ kernels, in the extension module `native`. The file `native.pyi` documents them."""

from pathlib import Path

from chorale.synth.errors import Unavailable
from chorale.synth.identity import sources_id

__all__ = ["native"]

_BUILD = "run `python setup.py build_ext --inplace` in the checkout, which needs a C++ compiler and nanobind"

try:
    import chorale.synth.kernels.native as native  # noqa: PLR0402 - the other form blames a circular import
except ImportError as error:
    raise Unavailable("Chorale's kernels are not built for this Python: {}", error, _BUILD) from error

_folder = Path(__file__).with_name("cpp")  # only in a checkout
if _folder.exists() and sources_id(_folder) != getattr(native, "SOURCES", None):
    raise Unavailable("Chorale's kernels are older than their sources: {}", native, _BUILD)
