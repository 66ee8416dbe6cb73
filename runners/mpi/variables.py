"""Settings of the MPI that mpi4py has loaded, which MPI's tool interface shows and changes while it runs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from mpi4py import MPI

from chorale.synth.errors import Unavailable

_NAME_BYTES, _TEXT_BYTES = 256, 16384


@dataclass(frozen=True, slots=True)
class Variable:
    """One that has a whole number. choices: names of its values, where it has such."""

    number: int
    name: str
    choices: Mapping[str, int]


class ToolInterface:
    """The variables of this process. Calls are cheap, but for `find`."""

    def __init__(self) -> None:
        """Raises Unavailable where MPI has no such interface."""
        self._mpi = ctypes.CDLL(MPI.__file__)  # its functions are those of the MPI that it is linked with
        level = ctypes.c_int()
        if self._mpi.MPI_T_init_thread(0, ctypes.byref(level)) != 0:
            raise Unavailable("MPI must have a tool interface", MPI.Get_library_version(), "use MPICH or Open MPI")
        self._handles: dict[int, ctypes.c_void_p] = {}

    def find(self, name: str) -> Variable | None:
        """Return the variable `name`, None if this MPI does not have it."""
        number = ctypes.c_int()
        if self._mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(number)) != 0:
            return None
        kind, choices = ctypes.c_void_p(), ctypes.c_void_p()
        own_name, text = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
        name_bytes, text_bytes = ctypes.c_int(_NAME_BYTES), ctypes.c_int(_TEXT_BYTES)
        verbosity, bound, scope = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._mpi.MPI_T_cvar_get_info(
            *(number, own_name, ctypes.byref(name_bytes), ctypes.byref(verbosity), ctypes.byref(kind)),
            *(ctypes.byref(choices), text, ctypes.byref(text_bytes), ctypes.byref(bound), ctypes.byref(scope)),
        )
        named = self._named(choices) if choices else _described(text.value.decode(errors="replace"))
        return Variable(number.value, name, MappingProxyType(named))

    def read(self, variable: Variable) -> int:
        """Return its value."""
        value = ctypes.c_int()
        self._mpi.MPI_T_cvar_read(self._handle(variable), ctypes.byref(value))
        return value.value

    def write(self, variable: Variable, value: int) -> None:
        """Give it a value, which may count only for communicators that are made after it."""
        if self._mpi.MPI_T_cvar_write(self._handle(variable), ctypes.byref(ctypes.c_int(value))) != 0:
            raise Unavailable(f"MPI must let its variable {variable.name} be set", value, "use MPICH or Open MPI")

    @contextmanager
    def having(self, values: Sequence[tuple[Variable, int]]) -> Iterator[None]:
        """Have variables at `values` meanwhile."""
        before = [(variable, self.read(variable)) for variable, _ in values]
        try:
            for variable, value in values:
                self.write(variable, value)
            yield
        finally:
            for variable, value in before:
                self.write(variable, value)

    def _handle(self, variable: Variable) -> ctypes.c_void_p:
        if variable.number not in self._handles:
            handle, count = ctypes.c_void_p(), ctypes.c_int()
            self._mpi.MPI_T_cvar_handle_alloc(variable.number, None, ctypes.byref(handle), ctypes.byref(count))
            self._handles[variable.number] = handle
        return self._handles[variable.number]

    def _named(self, choices: ctypes.c_void_p) -> dict[str, int]:
        """Return the values that MPI names, as Open MPI does."""
        count, name_bytes = ctypes.c_int(), ctypes.c_int(_NAME_BYTES)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._mpi.MPI_T_enum_get_info(choices, ctypes.byref(count), name, ctypes.byref(name_bytes))
        named = {}
        for index in range(count.value):
            value, name_bytes = ctypes.c_int(), ctypes.c_int(_NAME_BYTES)
            self._mpi.MPI_T_enum_get_item(choices, index, ctypes.byref(value), name, ctypes.byref(name_bytes))
            named[name.value.decode()] = value.value
        return named


def _described(text: str) -> dict[str, int]:
    """Return the values that MPICH's description lists, which are numbered from 0 in that order."""
    return {name: value for value, name in enumerate(re.findall(r"^\s*(\w+)\s+- ", text, re.MULTILINE))}
