"""The individual algorithms that MPI implements for each collective.

`library:mpi` is MPI's call, which chooses an algorithm itself; `library:mpi:ring` is the call with one algorithm for
all sizes. `python -m chorale.runners.mpi.algorithms` queries MPI for its algorithms and prints {collective: [names]} as
JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable

if TYPE_CHECKING:  # the import loads MPI, which the runner's process does not need
    from mpi4py import MPI

PREFIX = "mpi:"
"""Prefix of the names of MPI's algorithms in runners and campaigns."""

_NAME_BYTES, _TEXT_BYTES = 256, 16384
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
"""Values that are not listed: they leave the choice to MPI, or are algorithms for accelerators, two ranks, hosts with
several ranks, or calls in place."""

_HIGHEST_PRIORITY = 90
"""A priority above that of Open MPI's other components, which do not let us choose the algorithm."""


@cache
def mpi_algorithms() -> Mapping[str, tuple[str, ...]]:
    """Return, for each collective, the names (with prefix `mpi:`) of MPI's algorithms, for the MPI that ranks on this
    machine load. The result is empty unless it is MPICH or Open MPI. Raises Unavailable without MPI."""
    from chorale.runners.process_launch.processes import rank_environment  # noqa: PLC0415 - ranks need no launch

    command = [sys.executable, "-P", "-m", "chorale.runners.mpi.algorithms"]
    environment = {**os.environ, **rank_environment()}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True, env=environment)  # noqa: S603
        names: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Unavailable(
            "this MPI does not list its algorithms: {}", error, "use MPICH or Open MPI, and mpi4py"
        ) from error
    return {collective: tuple(PREFIX + name for name in each) for collective, each in names.items()}


class Variable(NamedTuple):
    """An MPI control variable with an integer value. choices: name of each value -> value, if values have names"""

    handle: ctypes.c_void_p
    name: str
    choices: Mapping[str, int]


class ForcedAlgorithm(NamedTuple):
    """An algorithm of MPI: calls on `communicator` use it inside `with forced():`."""

    communicator: MPI.Comm
    forced: Callable[[], AbstractContextManager[None]]


class MpiAlgorithms:
    """Lists and forces algorithms of the MPI that this process has loaded, through MPI's tool interface (MPI 4.1,
    chapter 15).
    """

    def __init__(self) -> None:
        """Open the tool interface. Raises Unavailable if MPI has none."""
        from mpi4py import MPI  # noqa: PLC0415 - it loads MPI, which the runner's process does not need

        self._mpi = ctypes.CDLL(MPI.__file__)  # provides the functions of the MPI with which it is linked
        if self._mpi.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int())) != 0:
            raise Unavailable("this MPI has no tool interface: {}", MPI.Get_library_version(), "use MPICH or Open MPI")

    def names(self, collective: CollectiveName) -> tuple[str, ...]:
        """Return the names of MPI's algorithms for `collective`, without a prefix."""
        variable = self._variable_of(collective)
        return () if variable is None else tuple(name for name in variable.choices if name not in _OTHERS)

    def force(self, communicator: MPI.Comm, collective: CollectiveName, name: str) -> ForcedAlgorithm:
        """Return an object that forces the algorithm `name` for calls on `communicator`; all its ranks call this
        together.

        Raises InvalidInput if MPI has no such algorithm. A call for which MPICH cannot use the algorithm fails.
        """
        variable = self._variable_of(collective)
        if variable is None or name not in self.names(collective):
            known = ", ".join(self.names(collective)) or "none"
            raise InvalidInput("MPI has no algorithm {}", f"{name} for {collective.value}", f"use one of {known}")
        values: tuple[tuple[Variable, int], ...]
        choice = (variable, variable.choices[name])
        if (fallback := self._find("MPIR_CVAR_COLLECTIVE_FALLBACK")) is not None:
            values = (choice, (fallback, fallback.choices["error"]))
            return ForcedAlgorithm(communicator, partial(self._having, values))
        rules, priority = map(self._find, ("coll_tuned_use_dynamic_rules", "coll_tuned_priority"))
        assert rules is not None
        assert priority is not None
        values = ((rules, 1), (priority, _HIGHEST_PRIORITY), choice)
        with self._having(values):  # Open MPI reads the variables when a communicator is created
            return ForcedAlgorithm(communicator.Dup(), partial(self._having, values))

    @contextmanager
    def _having(self, values: Sequence[tuple[Variable, int]]) -> Iterator[None]:
        """Set each control variable in `values` to its value during the block."""
        before = []
        for variable, _ in values:
            value = ctypes.c_int()
            self._mpi.MPI_T_cvar_read(variable.handle, ctypes.byref(value))
            before.append((variable, value.value))
        try:
            for variable, wanted in values:
                self._write(variable, wanted)
            yield
        finally:
            for variable, earlier in before:
                self._write(variable, earlier)

    def _write(self, variable: Variable, value: int) -> None:
        if self._mpi.MPI_T_cvar_write(variable.handle, ctypes.byref(ctypes.c_int(value))) != 0:
            raise Unavailable(f"MPI must let its variable {variable.name} be set", value, "use MPICH or Open MPI")

    def _variable_of(self, collective: CollectiveName) -> Variable | None:
        call = _CALLS[collective]
        return self._find(f"MPIR_CVAR_{call.upper()}_INTRA_ALGORITHM") or self._find(f"coll_tuned_{call}_algorithm")

    @cache  # noqa: B019 - it lives as long as the process
    def _find(self, name: str) -> Variable | None:
        """Return the variable `name`, or None if this MPI does not have it."""
        number, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
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
        self._mpi.MPI_T_cvar_handle_alloc(number.value, None, ctypes.byref(handle), ctypes.byref(count))
        if not choices:
            # MPICH's description lists the values, which are numbered from 0 in that order.
            listed = re.findall(r"^\s*(\w+)\s+- ", text.value.decode(errors="replace"), re.MULTILINE)
            return Variable(handle, name, {value_name: value for value, value_name in enumerate(listed)})
        # Open MPI names the values.
        named, value_name = {}, ctypes.create_string_buffer(_NAME_BYTES)
        self._mpi.MPI_T_enum_get_info(choices, ctypes.byref(count), value_name, ctypes.byref(name_bytes))
        for index in range(count.value):
            value, name_bytes = ctypes.c_int(), ctypes.c_int(_NAME_BYTES)
            self._mpi.MPI_T_enum_get_item(choices, index, ctypes.byref(value), value_name, ctypes.byref(name_bytes))
            named[value_name.value.decode()] = value.value
        return Variable(handle, name, named)


def main() -> None:
    """Print the names of MPI's algorithms without initializing MPI."""
    import mpi4py  # noqa: PLC0415 - only here

    mpi4py.rc.initialize = False
    algorithms = MpiAlgorithms()
    sys.stdout.write(f"{json.dumps({name.value: algorithms.names(name) for name in _CALLS})}\n")


if __name__ == "__main__":
    main()
