"""A library that stands in for NCCL on machines without a GPU; STAND_IN_VERSION says which version it plays."""

from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native

_FOLDER = Path(__file__).parent


def stand_in_library() -> Path:
    """Return the library, built first where that was not done before."""
    sources, linked = tuple(sorted(_FOLDER.glob("*.cpp"))), ("-ldl", "-lrt", "-lpthread")
    return build_native(NativeTarget("libnccl-stand-in.so", sources, ("-shared", "-fPIC"), (_FOLDER,), linked))
