"""What the operations of a plan move over the links of a topology, also through switches that add and multicast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

from chorale.runners.api.connections import Connection
from chorale.synth.programs.plans.plan import ExecutionPlan, Operand, Operation, PlanBlock
from chorale.synth.programs.program import Message
from chorale.synth.topology.topology import Topology


class PlanMessages:
    """The messages of `plan` on `topology`.

    A group of ranks that have links to and from one switch that can do it uses the switch: it takes the chunks of each
    rank once and gives their sum to who asks, or takes chunks of one and gives them to each, its own included. Without
    such a switch the chunks of each other rank are moved one by one. Amounts count parts of chunks, so that shares of
    groups are whole; a chunk has `parts`.
    """

    def __init__(self, plan: ExecutionPlan, topology: Topology) -> None:
        self._plan, self._topology = plan, topology
        links = topology.links
        operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
        self.parts = lcm(*{operation.part[1] for operation in operations})
        self._joined = set(zip(links.src.tolist(), links.dst.tolist(), strict=True))

    def of_operation(self, rank: int, block: PlanBlock, operation: Operation) -> list[Message]:
        """Return what `operation` of `block` of `rank` moves; ends may be switches."""
        whole = replace(operation, part=(0, 1))
        share = self.parts // operation.part[1]
        if operation.kind != "switch" or not operation.action.moves:
            return [each._replace(chunks=each.chunks * share) for each in self._plan.puts(rank, block, whole)]
        found: list[Message] = []
        for operands, reads in ((operation.sources, True), (operation.targets, False)):
            for operand in operands:
                if operand.switch is not None:
                    found += self._through_switch(rank, block, operation, operand, reads)
        return found

    def all(self) -> Iterator[tuple[Connection, int]]:
        """Yield connection and parts of chunks of everything that is moved. O(operations)."""
        for rank, body in enumerate(self._plan.ranks):
            for block in body.blocks:
                for operation in block.every_operation():
                    for *ends, chunks in self.of_operation(rank, block, operation):
                        yield Connection(*ends), chunks

    def _through_switch(
        self, rank: int, block: PlanBlock, operation: Operation, operand: Operand, reads: bool
    ) -> list[Message]:
        group = self._plan.ranks[rank].switches[block.switches[operand.switch or 0]][1]
        flags = 2 if operation.action.packets else 1
        chunks = operand.count * flags * (self.parts // operation.part[1])
        switch = self._switch_of(group, reads)
        if switch is None:
            others = (peer for peer in group if peer != rank)
            return [Message(*((peer, rank) if reads else (rank, peer)), 0, chunks) for peer in others]
        if reads:
            return [*(Message(peer, switch, 0, chunks) for peer in group), Message(switch, rank, 0, chunks)]
        return [Message(rank, switch, 0, chunks), *(Message(switch, peer, 0, chunks) for peer in group)]

    def _switch_of(self, group: Sequence[int], reads: bool) -> int | None:
        """Return a switch that joins the group and adds, or multicasts."""
        for switch, ability in sorted(self._topology.abilities.items()):
            able = ability.reduce if reads else ability.multicast
            if able and all({(rank, switch), (switch, rank)} <= self._joined for rank in group):
                return switch
        return None
