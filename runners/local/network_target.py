"""The C++ program that emulates the local runner's network: its sources, for builds at run time and for wheels."""

from pathlib import Path

from chorale.runners.engine.build import NativeTarget
from chorale.runners.engine.library import NATIVE as ENGINE

NATIVE = Path(__file__).parents[1] / "fabric" / "native"


def network_target() -> NativeTarget:
    return NativeTarget("chorale_network", (NATIVE / "network.cpp", ENGINE / "sockets.cpp"), includes=(ENGINE,))
