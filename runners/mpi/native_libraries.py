"""The native code of a rank: the engine, and MPI's messages as its transport."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native, native_home
from chorale.runners.engine.library import NATIVE, engine_library

_SOURCES = Path(__file__).parent / "native"


@dataclass(frozen=True, slots=True)
class NativeLibraries:
    """Shared libraries: engine, and messages for it (native/mpi_messages.h)."""

    engine: Path
    messages: Path

    @property
    def exist(self) -> bool:
        """Whether both are on this host, which may have other files than the one where they were built."""
        return self.engine.exists() and self.messages.exists()


def native_libraries(home: Path | None = None) -> NativeLibraries:
    """Return the libraries, built first where that was not done before. Unavailable without a compiler."""
    folder = (home or native_home()).resolve()
    sources = tuple(sorted(_SOURCES.glob("*.cpp")))
    messages = NativeTarget("libchorale_mpi_messages.so", sources, ("-shared", "-fPIC"), (NATIVE,))
    return NativeLibraries(engine_library(folder), build_native(messages, folder))
