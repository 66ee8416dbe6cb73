"""Finds the C++ tuner plug-in for NCCL and RCCL, which chooses each call's settings from a file and counts calls."""

from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native

NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden")


def plugin_target() -> NativeTarget:
    return NativeTarget("libnccl-tuner-chorale.so", tuple(sorted(NATIVE.glob("*.cpp"))), _FLAGS, (NATIVE,))


def tuner_plugin() -> Path:
    """Return the plug-in's path, to which NCCL_TUNER_PLUGIN is set: the file in the wheel, else one that is built now.

    Raises Unavailable if it must be built and there is no compiler.
    """
    return build_native(plugin_target())
