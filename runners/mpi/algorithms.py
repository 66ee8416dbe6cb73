"""The algorithms that MPI has built in for each collective, one by one.

`library:mpi` is MPI's call, which chooses by itself; `library:mpi:ring` is the call with one algorithm for all sizes.
Which there are, MPI itself says: `python -m chorale.runners.mpi.algorithms` writes {collective: [names]} as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable

if TYPE_CHECKING:  # it loads MPI, which the process of the runner does without
    from mpi4py import MPI

    from chorale.runners.mpi.variables import ToolInterface, Variable

PREFIX = "mpi:"
"""Of the names that runners and campaigns have for these."""

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
"""Above Open MPI's other components, which have no such choice."""


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
    from chorale.runners.mpi.launch import rank_environment  # noqa: PLC0415 - of ranks, who need no launch

    return {**os.environ, **rank_environment()}


@dataclass(frozen=True, slots=True)
class ForcedAlgorithm:
    """One algorithm for the calls on `communicator` that are made inside of `forced()`."""

    communicator: MPI.Comm
    _tools: ToolInterface
    _values: tuple[tuple[Variable, int], ...]

    def forced(self) -> AbstractContextManager[None]:
        """Have MPI use it meanwhile."""
        return self._tools.having(self._values)


class MpiAlgorithms:
    """Those of the MPI that this process has loaded."""

    def __init__(self, tools: ToolInterface) -> None:
        self._tools = tools

    def names(self, collective: CollectiveName) -> tuple[str, ...]:
        """Return the names for `collective`, without a prefix."""
        variable = self._variable(collective)
        return () if variable is None else tuple(name for name in variable.choices if name not in _OTHERS)

    def force(self, communicator: MPI.Comm, collective: CollectiveName, name: str) -> ForcedAlgorithm:
        """Return the algorithm `name` for calls among the ranks of `communicator`, all of which call this.

        InvalidInput for one that MPI does not have. Where MPICH cannot use it for a call, that call is an error.
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
    from chorale.runners.mpi.variables import ToolInterface  # noqa: PLC0415 - it loads MPI

    algorithms = MpiAlgorithms(ToolInterface())
    names = {name.value: algorithms.names(name) for name in _CALLS}
    sys.stdout.write(f"{json.dumps(names)}\n")


if __name__ == "__main__":
    main()
