"""Verifies symmetric schedules from the rows of rank 0 or of a few roots, without the rows of other ranks.

Like `chorale.synth.verify.verify`, it is independent of the synthesizers.

Stepped schedules: why checking rank 0 is enough. Every generator is an automorphism of the network, and together they
map rank 0 to every rank. Symmetries preserve hop counts. So if rank 0 has all shards at distance k after step L(k), so
does every rank, no matter which symmetry maps the rows of rank 0 to it. A row that brings shard v over link w -> 0 in
step t is therefore valid if L(hops from v to w) < t, because w has the shard by then; the same is true of its images at
all other ranks. This condition is sufficient but not necessary: a correct schedule that treats shards at equal
distances differently may be rejected here. To check such a schedule, expand it and use `verify`.

Trees: why checking the first root of each orbit is enough. The translations are automorphisms of the network. They form
a group in which exactly one member maps the first rank of an orbit to any given rank of this orbit. In an allgather,
shards do not depend on one another, so a schedule is correct if it is correct for each shard alone. Any shard's rows
are the image of the rows of the first rank in its orbit, which were replayed chunk by chunk. Images of routes are
routes with equal bandwidths and latencies.

The load of a link is the sum, over all members g of the group, of the load that the base rows put on its preimage under
g. The group maps every link in an orbit to any other link equally often: |group| / |orbit| times. So the load is
exactly the sum of the base loads over the orbit, multiplied by |group| / |orbit|.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule, SymmetricTrees
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import is_automorphism, transpose_with_links
from chorale.synth.topology.translations import Translations
from chorale.synth.verify.replay import NEVER, column_violations, structural_violations
from chorale.synth.verify.verified import Cost, LoadSummary, ScheduleViolation, period_latency_s, summarize
from chorale.synth.verify.verify import Replay


def inspect_symmetric(schedule: SymmetricSchedule) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    """Return ([], (cost, link loads)) if `schedule` is correct, else (violations of the first failing check, None)."""
    violations = list(_whole_violations(schedule))
    total, duplicates = np.zeros(len(schedule.topology.links), dtype=np.int64), 0
    time_per_byte = latency_s = Fraction(0)
    for part in schedule.parts if not violations else ():
        inspected = _inspected_trees(part) if isinstance(part, SymmetricTrees) else _inspected_gather(part)
        violations = inspected.violations
        if inspected.duplicates and part is schedule.scatter and not violations:
            # The part runs backwards in time, so delivering a chunk twice means adding a contribution twice.
            text = "the scatter part delivers a chunk for the second time"
            violations = [ScheduleViolation("reduced-twice", text)]
        if violations:
            break
        scale = schedule.chunks_per_shard // part.chunks_per_shard
        link = transpose_with_links(schedule.topology)[1] if part is schedule.scatter else slice(None)
        total[link] += scale * inspected.loads
        duplicates += scale * inspected.duplicates
        time_per_byte += inspected.time / (part.chunks_per_shard * part.topology.compute_count)
        latency_s += inspected.latency_s
    if violations:
        return violations, None
    bandwidth = schedule.topology.node_bandwidth
    factor = None if bandwidth is None else time_per_byte * bandwidth
    cost = Cost(schedule.steps, time_per_byte, factor, latency_s)
    chunk = Fraction(1, schedule.chunks_per_shard * schedule.topology.compute_count)
    return [], (cost, summarize(total, chunk, duplicates))


@dataclass(frozen=True, slots=True, eq=False)
class _Inspected:
    """Results of inspecting one part of a symmetric schedule.

    loads:      int64 per link of the part's network: chunks that cross it during the part
    duplicates: number of chunks that ranks received although they already had them, over all ranks
    time:       sum over steps of the busiest link's chunks / bandwidth; all trees together count as one step
    latency_s:  sum over steps of the largest latency of a route, in seconds
    """

    violations: list[ScheduleViolation]
    loads: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    duplicates: int = 0
    time: Fraction = Fraction(0)
    latency_s: Fraction = Fraction(0)


def _whole_violations(schedule: SymmetricSchedule) -> Iterator[ScheduleViolation]:
    """Yield violations if the schedule lacks a part that its collective needs or has a part on the wrong network."""
    expected = {"allgather": (False, True), "reduce_scatter": (True, False), "allreduce": (True, True)}
    parts = (schedule.scatter is not None, schedule.gather is not None)
    if expected.get(schedule.collective.name.value) != parts:
        yield ScheduleViolation("parts", f"{schedule.collective} does not consist of the parts in the schedule")
    if schedule.gather is not None and schedule.gather.topology.id != schedule.topology.id:
        yield ScheduleViolation("parts", "the gather part is on another network")
    if schedule.scatter is not None and schedule.scatter.topology.id != transpose_with_links(schedule.topology)[0].id:
        yield ScheduleViolation("parts", "the scatter part is not on the transpose of the network")
    if len({type(part) for part in schedule.parts}) > 1:
        yield ScheduleViolation("parts", "one part has steps, the other has trees that stream")


def _inspected_trees(part: SymmetricTrees) -> _Inspected:
    topology, base = part.topology, part.base
    violations = [
        ScheduleViolation("symmetry", f"generator {index} does not keep the links of {topology.spec}")
        for index in part.generators
        if not is_automorphism(topology, topology.automorphisms[index])
    ]
    try:  # construct the group again, which raises unless it is a group of translations
        Translations.of(topology, part.generators)
    except InvalidInput as error:
        violations.append(ScheduleViolation("symmetry", str(error)))
    violations = violations or structural_violations(part.base_schedule())
    if violations:
        return _Inspected(violations)
    other = np.flatnonzero(~np.isin(base.shard, part.translations.first_ranks))
    if len(other):
        row = int(other[0])
        text = f"row {row} moves shard {int(base.shard[row])}, which is not a first rank's"
        violations.append(ScheduleViolation("base-shard", text))
    if base.reduce.any():
        text = f"row {int(np.argmax(base.reduce))} reduces, but this is an allgather"
        violations.append(ScheduleViolation("unexpected-reduce", text))
    replay = Replay(part.base_schedule())
    for root in part.translations.first_ranks.tolist():
        violations = violations or replay.window(root, root + 1)
    if violations:
        return _Inspected(violations)
    of_route = np.zeros(len(part.routes), dtype=np.int64)
    np.add.at(of_route, base.route, base.hi.astype(np.int64) - base.lo)
    of_link = np.zeros(len(topology.links), dtype=np.int64)
    np.add.at(of_link, part.routes.link_ids, np.repeat(of_route, np.diff(part.routes.offsets)))
    loads = part.translated_links().totals(of_link)
    duplicates = replay.duplicates * len(part.translations)
    latency_s = period_latency_s(part.base_schedule())
    return _Inspected([], loads, duplicates, topology.links.longest_time(loads), latency_s)


def _inspected_gather(part: SymmetricGather) -> _Inspected:
    violations = list(_symmetry_violations(part))
    violations = violations or list(_form_violations(part))
    violations = violations or list(_replay_violations(part))
    if violations:
        return _Inspected(violations)
    loads, ranks = part.loads(), part.topology.compute_count
    incoming = [part.topology.links[link] for link in range(loads.shape[1])]
    time = latency_s = Fraction(0)
    for step in loads.tolist():
        used = [(load, link) for load, link in zip(step, incoming, strict=True) if load]
        time += max((load / link.bandwidth for load, link in used), default=Fraction(0))
        latency_s += max((link.latency_s for _, link in used), default=Fraction(0))
    starts, ends = _intervals(part)  # they cover all chunks, so all additional deliveries are duplicates
    duplicates = int((ends - starts).sum()) - ranks * part.chunks_per_shard
    return _Inspected([], loads.sum(axis=0)[part.base_links()], duplicates * ranks, time, latency_s)


def _symmetry_violations(part: SymmetricGather) -> Iterator[ScheduleViolation]:
    """Yield a violation for each generator that is not a symmetry of the network."""
    topology, fits = part.topology, True
    for index, generator in enumerate(topology.automorphisms):
        if not is_automorphism(topology, generator):
            fits = False
            yield ScheduleViolation("symmetry", f"generator {index} does not keep the links of {topology.spec}")
    if not fits:
        return
    links, base = topology.links, part.base_links()
    for column in (links.bandwidth_class, links.latency_class):
        if np.any(column != column[base]):
            yield ScheduleViolation(
                "symmetry", f"parallel links of {topology.spec} are not in the order that symmetries keep"
            )


def _form_violations(part: SymmetricGather) -> Iterator[ScheduleViolation]:
    """Yield violations for wrong types or values in the base rows, and for rows that do not end at rank 0."""
    bounds, base, links = part.bounds, part.base, part.topology.links
    if part.steps >= NEVER - 1:
        yield ScheduleViolation("steps", f"{part.steps} steps are more than the {NEVER - 2} that can be replayed")
    degree = int(np.searchsorted(links.dst, 1))
    limits = (bounds.steps, degree, bounds.shards, bounds.chunks_per_shard, bounds.chunks_per_shard + 1, 1)
    wrong = list(column_violations(base.columns, bounds.dtypes, limits))
    yield from wrong
    empty = np.flatnonzero(base.lo >= base.hi)
    if len(empty):
        yield ScheduleViolation("interval", f"row {int(empty[0])}: the chunk interval is empty")
    if not any(violation.rule == "column-range" for violation in wrong) and np.any(links.src[base.route] == 0):
        yield ScheduleViolation("self-send", "rank 0 sends to itself")


def _replay_violations(part: SymmetricGather) -> Iterator[ScheduleViolation]:
    """Yield violations if rank 0 does not receive every chunk, or if a sender does not have its chunks in time."""
    base, links = part.base, part.topology.links
    # Find the first shard that is not complete at rank 0.
    starts, ends = _intervals(part)
    covered = np.maximum.accumulate(ends)
    total = part.topology.compute_count * part.chunks_per_shard
    gaps = np.flatnonzero(covered < np.append(starts[1:], total))
    missing = int(covered[gaps[0]]) // part.chunks_per_shard if len(gaps) else None
    if missing is not None:
        yield ScheduleViolation(
            "not-delivered", f"a chunk of shard {missing} is missing at rank 0, and its images elsewhere"
        )
    degree = int(np.searchsorted(links.dst, 1))
    hops = distances_to(part.topology, np.concatenate([[0], links.src[:degree]])).astype(np.int64)
    to_rank_0, at_tail = hops[0], hops[1:]
    step = base.step.astype(np.int64)
    # The shard that starts at rank 0 is present before the first step, even if it is delivered again later.
    after = np.full(int(hops.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(after, to_rank_0[base.shard], step)
    after[0] = -1
    early = np.flatnonzero(after[at_tail[base.route, base.shard]] >= step)
    if len(early):
        row = int(early[0])
        text = (
            f"row {row} sends shard {int(base.shard[row])} in step {int(step[row])}, before all equally far ones arrive"
        )
        yield ScheduleViolation("sent-before-received", text)


def _intervals(part: SymmetricGather) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts, ends) of the chunk intervals that rank 0 has in the end, as int64 arrays sorted by start.

    Chunks are numbered consecutively over all shards.
    """
    chunks = part.chunks_per_shard
    first = part.base.shard.astype(np.int64) * chunks
    starts = np.concatenate([[0], first + part.base.lo])
    ends = np.concatenate([[chunks], first + part.base.hi])
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]
