"""Algorithms with a closed form, by name: each makes a schedule, or the traffic of networks too large for one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.methods.method import Method, SynthesisTask
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.topology import Topology

if TYPE_CHECKING:
    from chorale.synth.methods.grid.pattern import CollectivePattern

_SCATTERED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE)
_ROOTED = (CollectiveName.BROADCAST, CollectiveName.REDUCE)
_WHOLE = (CollectiveName.ALLREDUCE, *_ROOTED)


class Algorithm(Method):
    """An algorithm with a closed form, made by `function` of the module `module` next to this one.

    all_ports: the function is asked for the form that is mirrored onto all ports
    """

    def __init__(
        self,
        name: str,
        summary: str,
        collectives: tuple[CollectiveName, ...],
        module: str,
        function: str,
        all_ports: bool = False,
    ) -> None:
        super().__init__(name, summary, collectives, ("chunks",))
        self._module, self._function, self._all_ports = module, function, all_ports

    def pattern(self, topology: Topology, collective: Collective) -> CollectivePattern:
        """Return what is sent; raises InvalidInput where the topology does not suit."""
        make = getattr(importlib.import_module(f".{self._module}", __package__), self._function)
        pattern: CollectivePattern = make(topology, collective, **({"all_ports": True} if self._all_ports else {}))
        return pattern

    def make(self, task: SynthesisTask) -> AnySchedule:
        return self.pattern(task.topology, task.collective).schedule(task.options.chunks)


_ALL = (
    Algorithm(
        "swing", "Swing, bandwidth-optimal, on grids of any sizes", (*_SCATTERED, *_ROOTED), "grid.algorithms", "swing"
    ),
    Algorithm("swing-latency", "Swing with whole vectors, log2 N steps", _WHOLE, "grid.algorithms", "swing_latency"),
    Algorithm(
        "hamiltonian-ring", "rings around edge-disjoint cycles, all ports", _SCATTERED,
        "rings.rings", "hamiltonian_ring",
    ),
    Algorithm("bfb-ring", "the same cycles, both ways to meet half-way", _SCATTERED, "rings.rings", "bfb_ring"),
    Algorithm(
        "bucket", "rings along one dimension after the other, all ports in step", _SCATTERED,
        "grid.algorithms", "bucket",
    ),
    Algorithm(
        "traditional-torus", "bucket in which no port waits for others", _SCATTERED,
        "grid.algorithms", "traditional_torus",
    ),
    Algorithm(
        "recursive-doubling", "exchange of whole vectors, one port", _WHOLE,
        "grid.algorithms", "recursive_doubling",
    ),
    Algorithm(
        "mirrored-recursive-doubling", "the same, mirrored onto all ports", _WHOLE,
        "grid.algorithms", "recursive_doubling", all_ports=True,
    ),
    Algorithm(
        "rabenseifner", "recursive halving and doubling, one port", (*_SCATTERED, *_ROOTED),
        "grid.algorithms", "rabenseifner",
    ),
    Algorithm(
        "mirrored-rabenseifner", "the same, mirrored onto all ports", (*_SCATTERED, *_ROOTED),
        "grid.algorithms", "rabenseifner", all_ports=True,
    ),
    Algorithm(
        "double-binary-tree", "two trees, half of the data each, pipelined", _WHOLE,
        "double_binary_tree", "double_binary_tree",
    ),
)  # fmt: skip

ALGORITHMS: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in _ALL}
"""All algorithms with a closed form by name."""


def pattern_of(method: str, topology: Topology, collective: Collective) -> CollectivePattern | None:
    """Return the pattern of `method` if it has a closed form on `topology`, else None.

    That is so for `ALGORITHMS`, and for ring on networks of boxes (`chorale.synth.methods.rings.rings`). Raises
    InvalidInput where the algorithm cannot make the collective or does not suit the topology.
    """
    if method == "ring" and topology.switch_count:
        from chorale.synth.methods.rings.rings import box_ring, count_boxes  # noqa: PLC0415 (few wait for it)

        if count_boxes(topology) > 1:
            return box_ring(topology, collective)
    return ALGORITHMS[method].pattern(topology, collective) if method in ALGORITHMS else None
