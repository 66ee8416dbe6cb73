"""The tuner plug-in of NCCL and RCCL, in C++: rows of a file decide, and what they decided is counted."""

from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native

NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden")


def plugin_target() -> NativeTarget:
    """Return the library of the plug-in."""
    return NativeTarget("libnccl-tuner-chorale.so", tuple(sorted(NATIVE.glob("*.cpp"))), _FLAGS, (NATIVE,))


def tuner_plugin() -> Path:
    """Return the path of the library for NCCL_TUNER_PLUGIN: that of the wheel, else a new build if necessary.

    Raises Unavailable if it must be built and there is no compiler.
    """
    return build_native(plugin_target())
