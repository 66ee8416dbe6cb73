"""Lets engines exchange their messages over MPI."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE, engine_library
from chorale.synth.errors import InvalidInput

if TYPE_CHECKING:
    from mpi4py import MPI


class NativeLibraries(NamedTuple):
    """The paths of two shared libraries: the engine, and its transport over MPI messages (native/mpi_messages.h)."""

    engine: Path
    messages: Path


def native_libraries() -> NativeLibraries:
    """Return the libraries; build them first if necessary. Raises Unavailable without a compiler."""
    sources = (Path(__file__).parent / "native" / "mpi_messages.cpp",)
    messages = NativeTarget("libchorale_mpi_messages.so", sources, ("-shared", "-fPIC"), (NATIVE,))
    return NativeLibraries(engine_library(), build_native(messages))


MOST_BYTES = 2**30
"""Size in bytes of the largest MPI message: MPI's counts have 32 bits. Longer messages of the engine are split."""

OPEN_MPI_MOST_BYTES = 2**15
"""Size in bytes of the largest message over Open MPI. Longer messages, above Open MPI's eager limit, would share a
connection, so that all arrive late. Short messages arrive one after another, so a rank can forward each immediately."""


class _Mpi(ctypes.Structure):
    """The C struct chorale_mpi in native/mpi_messages.h."""

    _fields_ = (
        ("isend", ctypes.c_void_p),
        ("irecv", ctypes.c_void_p),
        ("testsome", ctypes.c_void_p),
        ("communicator", ctypes.c_int64),
        ("byte_type", ctypes.c_int64),
        ("handle_bytes", ctypes.c_size_t),
        ("status_bytes", ctypes.c_size_t),
        ("most_bytes", ctypes.c_size_t),
    )


class MpiMessages:
    """Sends the engine's messages over `communicator`, which nothing else may use. A message's MPI tag is its channel.

    most_bytes: size of the largest MPI message in bytes; None for the best value for this MPI
    address:    address of the C struct chorale_messages, valid until `close`; close the engine first
    """

    def __init__(self, communicator: MPI.Comm, library: Path, most_bytes: int | None = None) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - it loads MPI, which the runner's process does not need

        self._library = ctypes.CDLL(str(library))
        self._library.chorale_mpi_messages_new.restype = ctypes.c_void_p
        self._library.chorale_mpi_messages_free.argtypes = (ctypes.c_void_p,)
        handles = MPI._handleof(communicator), MPI._handleof(MPI.BYTE)
        if most_bytes is None:
            most_bytes = OPEN_MPI_MOST_BYTES if MPI.get_vendor()[0] == "Open MPI" else MOST_BYTES
        loaded = ctypes.CDLL(MPI.__file__)  # also finds functions of the libraries to which it is linked
        functions = (loaded.MPI_Isend, loaded.MPI_Irecv, loaded.MPI_Testsome)
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        mpi = _Mpi(*addresses, *handles, MPI._sizeof(MPI.Request), MPI._sizeof(MPI.Status), most_bytes)
        self.address = int(self._library.chorale_mpi_messages_new(ctypes.byref(mpi)) or 0)
        if not self.address:
            raise InvalidInput("a message of MPI must have 1 to 2147483647 bytes", most_bytes, "choose another limit")

    def close(self) -> None:
        """Free the native code's memory. Safe to call twice."""
        address, self.address = self.address, 0
        self._library.chorale_mpi_messages_free(address)
