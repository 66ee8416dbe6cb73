"""The algorithms that MPI implements for each collective, one by one.

`library:mpi` is MPI's call, which chooses by itself; `library:mpi:ring` is the call with one algorithm for all sizes.
MPI itself lists them: `python -m chorale.runners.mpi.algorithms` writes {collective: [names]} as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable

_NAME_BYTES, _TEXT_BYTES = 256, 16384


@dataclass(frozen=True, slots=True)
class Variable:
    """A control variable of MPI with an integer value. choices: names of its values, if they have names"""

    number: int
    name: str
    choices: Mapping[str, int]


class ToolInterface:
    """The variables of this process. Calls are cheap, but for `find`."""

    def __init__(self) -> None:
        """Raises Unavailable if MPI has no such interface."""
        from mpi4py import MPI  # noqa: PLC0415 - it loads MPI, which the process of the runner does without

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
        # MPICH's description lists the values, which are numbered from 0 in that order.
        listed = re.findall(r"^\s*(\w+)\s+- ", text.value.decode(errors="replace"), re.MULTILINE)
        described = {value_name: value for value, value_name in enumerate(listed)}
        named = self._named(choices) if choices else described
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


if TYPE_CHECKING:  # it loads MPI, which the process of the runner does without
    from mpi4py import MPI

PREFIX = "mpi:"
"""Prefix of these algorithms' names in runners and campaigns."""

_LIMIT_S = 30.0
_CALLS = {
    CollectiveName.ALLREDUCE: "allreduce",
    CollectiveName.ALLGATHER: "allgather",
    CollectiveName.REDUCE_SCATTER: "reduce_scatter_block",
    CollectiveName.BROADCAST: "bcast",
    CollectiveName.REDUCE: "reduce",
    CollectiveName.ALLTOALL: "alltoall",
}
_OTHERS = ("auto", "ignore", "ccl", "two_proc", "smp", "pairwise_sendrecv_replace")
"""Values that leave the choice to MPI, and algorithms for accelerators, two ranks, hosts of several ranks, or calls in
place."""

_HIGHEST_PRIORITY = 90
"""Priority above Open MPI's other components, which offer no choice of algorithm."""


@cache
def mpi_algorithms() -> Mapping[str, tuple[str, ...]]:
    """Return the names for each collective, `mpi:` in front, of the MPI that ranks of this machine load; none for other
    MPIs than MPICH and Open MPI. Unavailable without MPI."""
    command = [sys.executable, "-P", "-m", "chorale.runners.mpi.algorithms"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True, env=_environment())  # noqa: S603
        names: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Unavailable("MPI must say which algorithms it has", error, "use MPICH or Open MPI, and mpi4py") from error
    return {collective: tuple(PREFIX + name for name in each) for collective, each in names.items()}


def _environment() -> dict[str, str]:
    from chorale.runners.process_launch.processes import rank_environment  # noqa: PLC0415 - ranks need no launch

    return {**os.environ, **rank_environment()}


@dataclass(frozen=True, slots=True)
class ForcedAlgorithm:
    """One algorithm for the calls on `communicator` inside `forced()`."""

    communicator: MPI.Comm
    _tools: ToolInterface
    _values: tuple[tuple[Variable, int], ...]

    def forced(self) -> AbstractContextManager[None]:
        """Have MPI use it meanwhile."""
        return self._tools.having(self._values)


class MpiAlgorithms:
    """The algorithms of the MPI that this process has loaded."""

    def __init__(self, tools: ToolInterface) -> None:
        self._tools = tools

    def names(self, collective: CollectiveName) -> tuple[str, ...]:
        """Return the names for `collective`, without a prefix."""
        variable = self._variable(collective)
        return () if variable is None else tuple(name for name in variable.choices if name not in _OTHERS)

    def force(self, communicator: MPI.Comm, collective: CollectiveName, name: str) -> ForcedAlgorithm:
        """Return the algorithm `name` for calls of `communicator`; all its ranks call this together.

        Raises InvalidInput if MPI has no such algorithm. If MPICH cannot use it for a call, that call fails.
        """
        variable = self._variable(collective)
        if variable is None or name not in self.names(collective):
            known = ", ".join(self.names(collective)) or "none"
            raise InvalidInput("MPI must have the algorithm", f"{name} for {collective.value}", f"use one of {known}")
        choice = (variable, variable.choices[name])
        if (fallback := self._tools.find("MPIR_CVAR_COLLECTIVE_FALLBACK")) is not None:
            return ForcedAlgorithm(communicator, self._tools, (choice, (fallback, fallback.choices["error"])))
        rules, priority = map(self._tools.find, ("coll_tuned_use_dynamic_rules", "coll_tuned_priority"))
        assert rules is not None
        assert priority is not None
        values = ((rules, 1), (priority, _HIGHEST_PRIORITY), choice)
        with self._tools.having(values):  # Open MPI looks at them when a communicator is made
            return ForcedAlgorithm(communicator.Dup(), self._tools, values)

    def _variable(self, collective: CollectiveName) -> Variable | None:
        call = _CALLS[collective]
        return self._tools.find(f"MPIR_CVAR_{call.upper()}_INTRA_ALGORITHM") or self._tools.find(
            f"coll_tuned_{call}_algorithm"
        )


def main() -> None:
    """Write the names; MPI itself is not started for that."""
    import mpi4py  # noqa: PLC0415 - only here

    mpi4py.rc.initialize = False
    from chorale.runners.mpi.algorithms import ToolInterface  # noqa: PLC0415 - it loads MPI

    algorithms = MpiAlgorithms(ToolInterface())
    names = {name.value: algorithms.names(name) for name in _CALLS}
    sys.stdout.write(f"{json.dumps(names)}\n")


if __name__ == "__main__":
    main()
