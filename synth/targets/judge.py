"""Checks programs: finds the rules that a program breaks and the largest vector for which it is correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from chorale.synth.lazy_modules import networkx as nx
from chorale.synth.programs.check_execution import Verdict, execution_verdict
from chorale.synth.programs.check_structure import structure_violations
from chorale.synth.programs.memory import rank_count
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.programs.program import AnyProgram, Op, Program, ProgramViolation
from chorale.synth.targets.registry import XML_TARGETS, Lifted, target_named
from chorale.synth.topology.expansions import process_network
from chorale.synth.topology.topology import Topology

Connected = Callable[[int, int], bool]
"""Function (source rank, target rank) that returns whether a path of links leads from source to target."""

_ADDING = frozenset({Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND, Op.REDUCE})
_HARMLESS_TO_EXECUTE = frozenset({"limit", "idle rank", "channels", "never used"})
_HARMLESS_TO_RESULTS = _HARMLESS_TO_EXECUTE | {"route"}


def judge(lifted: Lifted[AnyProgram], topology: Topology) -> Verdict:
    """Check a program that was read from text. Return faults in the text and rules that the program breaks."""
    other = tuple(rank_count_violations(lifted.program, topology))
    verdict = judge_program(lifted.program, None if other else reachability(network_of(lifted.program, topology)))
    found = [*lifted.findings, *other, *verdict.violations]
    if lifted.out_of_place is not None and not other:
        twin = judge_program(lifted.out_of_place).violations
        found += [replace(fault, message=f"out of place: {fault.message}") for fault in twin]
    return replace(verdict, violations=tuple(found), notices=(*lifted.notices, *verdict.notices))


def judge_program(program: AnyProgram, connected: Connected | None = None) -> Verdict:
    """Check `program` and return the rules that it breaks and the vector sizes for which it is correct.

    First, the structure is checked: the target's limits, buffers, peers, connections and waits. If the program can be
    executed at all, it is then executed symbolically to find races, deadlocks, reads of chunks that were never written,
    wrong sums, wrong results and changed inputs. In programs with one-sided operations, the execution also finds writes
    that may arrive after the end of the call.

    Args:
        program: A program in any form.
        connected: Function that returns whether the network has a path from one rank to another; None if all ranks are
            connected.
    """
    found = _structure(program)
    if connected is not None:
        found.extend(_unconnected(program, connected))
    if any(violation.rule not in _HARMLESS_TO_RESULTS for violation in found):
        return Verdict(tuple(found))
    if isinstance(program, ExecutionPlan):
        return Verdict((*found, *plan_execution_violations(program)), tuple(_flush_notices(program)))
    if not isinstance(program, Program):
        return Verdict(tuple(found))
    buffers = target_named(program.target).limits.message_buffers
    buffer = None if buffers is None else buffers[program.protocol]
    executed = execution_verdict(program, buffer)
    notices = executed.notices
    if buffer is not None and executed.max_bytes is not None and not executed.violations:
        known = f"{executed.max_bytes} bytes with buffers of {buffer.buffer_bytes} bytes"
        stated = next(target for target in XML_TARGETS if target.name == program.target)
        text = (
            f"correct up to {known}, hangs above; set maxBytes={stated.stated_max_bytes(executed.max_bytes)}, or let "
            "--fix write it"
        )
        if 0 < program.max_bytes <= executed.max_bytes:
            text = f"correct at its sizes, up to {program.max_bytes} bytes; hangs above {known}"
        notices = (*notices, ProgramViolation.at("deadlock", text))
    return Verdict((*found, *executed.violations), notices, executed.max_bytes)


def check_program(program: AnyProgram, connected: Connected | None = None) -> list[ProgramViolation]:
    """Return every rule that `program` breaks. If the list is empty, the program executes its collective correctly.

    This may hold only up to a maximum vector size, which `judge_program` reports. `connected`: as in `judge_program`.
    """
    return list(judge_program(program, connected).violations)


def bounded(program: AnyProgram, max_bytes: int | None) -> AnyProgram:
    """Return `program` restricted to vectors of at most `max_bytes` bytes; unchanged if its limit is already lower."""
    if max_bytes is None or not isinstance(program, Program) or 0 < program.max_bytes <= max_bytes:
        return program
    return replace(program, max_bytes=max_bytes)


def execution_blockers(program: AnyProgram, topology: Topology) -> list[ProgramViolation]:
    """Return the violations that make it impossible to execute `program` on `topology`.

    Only structural rules are checked, not results. Rules that do not matter to an interpreter are skipped: rules about
    the target's limits, about ranks without blocks, and about the declared number of channels.
    """
    other = list(rank_count_violations(program, topology))
    structure = structure_violations(program) if isinstance(program, Program) else _structure(program)
    found = other or [*structure, *_unconnected(program, reachability(network_of(program, topology)))]
    return [violation for violation in found if violation.rule not in _HARMLESS_TO_EXECUTE]


def reachability(topology: Topology) -> Connected:
    """Return a function (source, target) that returns whether a path of links leads from node source to node target.

    The first call for each source takes O(nodes + links).
    """
    links = topology.links
    graph: nx.DiGraph[int] = nx.DiGraph(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    graph.add_nodes_from(range(topology.node_count))
    reached: dict[int, frozenset[int]] = {}

    def connected(source: int, target: int) -> bool:
        if source not in reached:
            reached[source] = frozenset({source, *nx.descendants(graph, source)})
        return target in reached[source]

    return connected


def network_of(program: AnyProgram, topology: Topology) -> Topology:
    """Return `topology`, with switches turned into compute nodes if `program` has processes for them."""
    return process_network(topology) if rank_count(program) < len(program.ranks) else topology


def rank_count_violations(program: AnyProgram, topology: Topology) -> Iterator[ProgramViolation]:
    """Yield a violation if `topology` does not have the ranks or the switch abilities that `program` needs."""
    if rank_count(program) != topology.compute_count:
        message = f"the program is for {rank_count(program)} ranks, the topology has {topology.compute_count}"
        yield ProgramViolation.at("ranks", message)
    elif isinstance(program, Program) and program.switches:
        able = tuple(sorted(topology.abilities))
        if program.switches != able:
            message = f"uses switches {program.switches}; those of {topology.spec} that add or multicast are {able}"
            yield ProgramViolation.at("switches", message)
            return
        for rank, node in enumerate(program.switches, topology.compute_count):
            adds = any(item.op in _ADDING for block in program.ranks[rank].blocks for item in block.instructions)
            if adds and not topology.abilities[node].reduce:
                yield ProgramViolation.at("switches", f"{topology.node_ids[node]} adds, but cannot", rank)


def _flush_notices(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Yield a notice for the plan's first `pwsf`: it is valid, but MSCCL++ 0.8 and 0.9 execute it incorrectly."""
    for rank, body in enumerate(plan.ranks):
        for number, block in enumerate(body.blocks):
            if any(each.action is Action.PUT_SIGNAL_FLUSH for each in block.every_operation()):
                message = (
                    "pwsf: the executors of MSCCL++ 0.8 and 0.9 pass the address of their table of source offsets as "
                    "the offset (handlePut), so that other data are sent; write pws and then flush"
                )
                yield ProgramViolation.at("pwsf", message, rank, number)
                return


def _structure(program: AnyProgram) -> list[ProgramViolation]:
    if isinstance(program, ExecutionPlan):
        return plan_structure_violations(program)
    if not isinstance(program, Program):
        return []  # a library call's instructions are unknown
    return structure_violations(program, target_named(program.target).limits)


def _unconnected(program: AnyProgram, connected: Connected) -> Iterator[ProgramViolation]:
    ranks = range(len(program.ranks))
    for sender, receiver in sorted(program.peers()):
        if sender in ranks and receiver in ranks and not connected(sender, receiver):
            yield ProgramViolation.at("route", f"sends to rank {receiver}, to which the network has no path", sender)
