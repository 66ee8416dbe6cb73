"""Kernels in C++, in the extension module `native`: `native.pyi` says what they do."""

try:
    from chorale.synth.kernels import native as native
except ImportError as error:
    way_out = "run `python setup.py build_ext --inplace` in the checkout, which needs a C++ compiler and nanobind"
    raise ImportError(f"Chorale's kernels are not built for this Python ({error}): {way_out}") from error
