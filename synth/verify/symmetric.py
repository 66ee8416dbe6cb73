"""Verification of symmetric schedules: the rows of one rank, or of the first roots, replayed against the symmetries.

Stepped schedules. Independent of the synthesizers, like `chorale.synth.verify.verify`. Why looking at rank 0 is
enough: let every generator be an automorphism of the network, and let them take rank 0 to every rank. Hop counts are
the same on both sides of a symmetry. So if a shard at k hops from rank 0 is always there after step L(k), it is so at
every rank, for all shards at k hops from that rank, whichever symmetry carried the rows there. Then a row that brings
shard v over link w -> 0 in step t sends what w has, if L(hops from v to w) < t; and so does its image at every rank.
This is sufficient. It is not necessary: a schedule that treats shards at equal distance in unequal ways may be right
and still be refused here; written out, `verify` decides about it.

Trees. Why looking at the first roots is enough: let the translations be automorphisms of the network that form a group
of which exactly one member takes the first rank of an orbit to any other rank of it. Shards do not depend on one
another in an allgather, so a schedule is right if the rows of every shard by themselves are; and the rows of a shard
are the image, under the one member that takes the first rank of its orbit to its root, of rows that were replayed
chunk by chunk. Images of routes are routes, over links of equal bandwidth and latency.

What a link carries is the sum, over all members g, of what the base rows put on its preimage under g. A group takes
every link of an orbit to any other equally often, |group| / |orbit| times, so that is the sum of the base loads over
the orbit times that number: exact, for every link.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.schedule.schedule import COLUMN_NAMES
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule, SymmetricTrees
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import bytes_per_second, transpose_with_links
from chorale.synth.topology.translations import Translations
from chorale.synth.verify.replay import NEVER, ActorTables, structural_violations
from chorale.synth.verify.verified import Cost, LoadSummary, ScheduleViolation, period_latency_s

Loads = NDArray[np.int64]


def inspect_symmetric_trees(
    schedule: SymmetricSchedule, size_bytes: int | None
) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    """Return the violations of all kinds; the cost, at `size_bytes` too, and the loads where there are none.

    The parts must be those of the collective, which `chorale.synth.verify.symmetric` checks.
    """
    violations: list[ScheduleViolation] = []
    duplicates = 0
    for part in _trees(schedule):
        violations += _group_violations(part)
        violations = violations or structural_violations(part.base_schedule())
        violations = violations or list(_shard_violations(part))
        if violations:
            return violations, None
        violations, again = _replay_first_roots(part)
        if again and part is schedule.scatter and not violations:
            # Backwards, a second delivery would be a second addition.
            violations = [ScheduleViolation("reduced-twice", "the scatter part delivers a chunk for the second time")]
        if violations:
            return violations, None
        duplicates += again * len(part.translations) * (schedule.chunks_per_shard // part.chunks_per_shard)
    loads = [_loads(part) for part in _trees(schedule)]
    return [], (
        _cost_of_trees(schedule, loads, size_bytes),
        _summary(schedule, loads, duplicates),
    )


def _trees(schedule: SymmetricSchedule) -> tuple[SymmetricTrees, ...]:
    return tuple(part for part in schedule.parts if isinstance(part, SymmetricTrees))


def _group_violations(part: SymmetricTrees) -> list[ScheduleViolation]:
    """Check every generator, and that together they generate translations (`Translations.of` refuses others)."""
    topology = part.topology
    violations = [
        ScheduleViolation("symmetry", f"generator {index} does not keep the links of {topology.spec}")
        for index in part.generators
        if not is_automorphism(topology, topology.automorphisms[index])
    ]
    try:
        Translations.of(topology, part.generators)
    except InvalidInput as error:
        violations.append(ScheduleViolation("symmetry", str(error)))
    return violations


def _shard_violations(part: SymmetricTrees) -> Iterator[ScheduleViolation]:
    """Check that base rows are of the first ranks' shards, and copies."""
    first = np.zeros(part.topology.compute_count, dtype=bool)
    first[part.translations.first_ranks] = True
    other = np.flatnonzero(~first[part.base.shard])
    if len(other):
        row = int(other[0])
        yield ScheduleViolation("base-shard", f"row {row} is of shard {int(part.base.shard[row])}, not a first rank's")
    if part.base.reduce.any():
        yield ScheduleViolation("unexpected-reduce", f"row {int(np.argmax(part.base.reduce))} reduces, in an allgather")


def _replay_first_roots(part: SymmetricTrees) -> tuple[list[ScheduleViolation], int]:
    """Replay the shards of the first ranks, a shard at a time; return violations and the chunks delivered twice."""
    roots, links, base = part.translations.first_ranks, part.topology.links, part.base
    order = np.argsort(base.shard, kind="stable")
    bounds = np.searchsorted(base.shard[order], np.append(roots, part.topology.compute_count))
    sources, destinations = part.routes.sources(links), part.routes.destinations(links)
    offsets, ranks = np.array([0, part.chunks_per_shard], dtype=np.int64), part.topology.compute_count
    times, numbers = np.zeros((1, 1), dtype=np.uint16), np.zeros((1, 1), dtype=np.int32)  # of sums and of switches
    duplicates = 0
    for index, root in enumerate(roots.tolist()):
        rows = base.select(order[bounds[index] : bounds[index + 1]])
        ends, nothing = (sources[rows.route], destinations[rows.route]), np.zeros(len(rows))
        table = np.array([rows.step, *ends, nothing, rows.lo, rows.hi, nothing], dtype=np.int32)
        arrival = np.full((ranks, part.chunks_per_shard), NEVER, dtype=np.uint16)
        arrival[root] = 0
        tables = ActorTables(arrival, times, times, times, numbers, numbers, numbers, numbers)
        duplicates += native.record_rows(table, 0, 1, offsets, ranks, tables)[0]
        fault, row = native.check_actors(table, 0, 1, offsets, ranks, tables)
        if fault:
            text = f"row {int(order[bounds[index] + row])} sends a chunk before it is there"
            return [ScheduleViolation("sent-before-received", text)], duplicates
        missing = np.argwhere(arrival == NEVER)
        if len(missing):
            rank, chunk = missing[0].tolist()
            text = f"chunk {chunk} of shard {root} is missing at rank {rank} ({len(missing)} in all), and its images"
            return [ScheduleViolation("not-delivered", text)], duplicates
    return [], duplicates


def _loads(part: SymmetricTrees) -> Loads:
    """Return int64 per link of the part's network: chunks over the whole part."""
    of_route = np.zeros(len(part.routes), dtype=np.int64)
    np.add.at(of_route, part.base.route, part.base.hi.astype(np.int64) - part.base.lo)
    base = np.zeros(len(part.topology.links), dtype=np.int64)
    np.add.at(base, part.routes.link_ids, np.repeat(of_route, np.diff(part.routes.offsets)))
    return part.translated_links().totals(base)


def _cost_of_trees(schedule: SymmetricSchedule, loads: list[Loads], size_bytes: int | None) -> Cost:
    """Return the exact cost: each part streams as long as its slowest link; one follows the other."""
    time_per_byte = latency_s = Fraction(0)
    for part, carried in zip(_trees(schedule), loads, strict=True):
        chunk = Fraction(1, part.chunks_per_shard * part.topology.compute_count)
        time_per_byte += part.topology.links.longest_time(carried) * chunk
        latency_s += period_latency_s(part.base_schedule())
    time_s = None
    if size_bytes is not None:
        time_s = latency_s + time_per_byte * size_bytes / bytes_per_second(schedule.topology)
    return _whole_cost(schedule, time_per_byte, latency_s, time_s)


def _whole_cost(
    schedule: SymmetricSchedule, time_per_byte: Fraction, latency_s: Fraction, time_s: Fraction | None
) -> Cost:
    bandwidth = schedule.topology.node_bandwidth
    factor = None if bandwidth is None else time_per_byte * bandwidth
    return Cost(schedule.steps, time_per_byte, factor, latency_s, time_s)


def _summary(schedule: SymmetricSchedule, loads: Sequence[Loads], duplicates: int) -> LoadSummary:
    """Return the loads of all links over the whole schedule. loads: per part, int64 per link in its own chunks."""
    total = np.zeros(len(schedule.topology.links), dtype=np.int64)
    for part, carried in zip(schedule.parts, loads, strict=True):
        scale = schedule.chunks_per_shard // part.chunks_per_shard
        if part is schedule.scatter:
            total[transpose_with_links(schedule.topology)[1]] += scale * carried
        else:
            total += scale * carried
    chunk = Fraction(1, schedule.chunks_per_shard * schedule.topology.compute_count)
    largest, smallest, idle = int(total.max()) * chunk, int(total.min()) * chunk, int((total == 0).sum())
    return LoadSummary(largest, smallest, int(total.sum()) * chunk, idle, duplicates)


def inspect_symmetric(
    schedule: SymmetricSchedule, size_bytes: int | None
) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    """Return the violations of all kinds; the cost, at `size_bytes` too, and the loads where there are none."""
    violations = list(_whole_violations(schedule))
    if violations:
        return violations, None
    if schedule.kind == "pipelined":
        return inspect_symmetric_trees(schedule, size_bytes)
    for part in _gathers(schedule):
        violations += _symmetry_violations(part)
        violations = violations or list(_form_violations(part))
        violations = violations or list(_replay_violations(part))
    if isinstance(schedule.scatter, SymmetricGather) and not violations and _duplicates(schedule.scatter):
        # Backwards, a second delivery would be a second addition.
        violations.append(
            ScheduleViolation("reduced-twice", "the scatter part brings a chunk to rank 0 for the second time")
        )
    if violations:
        return violations, None
    gathers = _gathers(schedule)
    loads = [part.loads().sum(axis=0)[part.base_links()] for part in gathers]
    again = [
        _duplicates(part) * part.topology.compute_count * (schedule.chunks_per_shard // part.chunks_per_shard)
        for part in gathers
    ]
    return [], (_symmetric_cost(schedule, size_bytes), _summary(schedule, loads, sum(again)))


def _gathers(schedule: SymmetricSchedule) -> tuple[SymmetricGather, ...]:
    return tuple(part for part in schedule.parts if isinstance(part, SymmetricGather))


def _whole_violations(schedule: SymmetricSchedule) -> Iterator[ScheduleViolation]:
    """Check that the parts are those of the collective, on the network and its transpose."""
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


def _symmetry_violations(part: SymmetricGather) -> Iterator[ScheduleViolation]:
    """Check every generator; that they take rank 0 to every rank is what a `Transversal` stands for."""
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
    """Check types and ranges of the base rows, and that each ends in rank 0 and starts elsewhere."""
    bounds, base, links = part.bounds, part.base, part.topology.links
    for name, column, dtype in zip(COLUMN_NAMES, base.columns, bounds.dtypes, strict=True):
        if column.dtype != dtype:
            yield ScheduleViolation("column-type", f"column {name} has type {column.dtype}, not {dtype}")
    if part.steps >= NEVER - 1:
        yield ScheduleViolation("steps", f"{part.steps} steps are more than the {NEVER - 2} that can be replayed")
    degree = int(np.searchsorted(links.dst, 1))
    limits = (bounds.steps, degree, bounds.shards, bounds.chunks_per_shard, bounds.chunks_per_shard + 1, 1)
    fits = True
    for name, column, limit in zip(COLUMN_NAMES, base.columns, limits, strict=True):
        if len(column) and int(column.max()) >= limit:
            fits = False
            yield ScheduleViolation(
                "column-range", f"row {int(np.argmax(column))}: {name} is {int(column.max())}, not below {limit}"
            )
    empty = np.flatnonzero(base.lo >= base.hi)
    if len(empty):
        yield ScheduleViolation("interval", f"row {int(empty[0])}: the chunk interval is empty")
    if fits and np.any(links.src[base.route] == 0):
        yield ScheduleViolation("self-send", "rank 0 sends to itself")


def _replay_violations(part: SymmetricGather) -> Iterator[ScheduleViolation]:
    """Check that rank 0 gets every chunk, and that every tail has what it sends by then."""
    base, links = part.base, part.topology.links
    # The first shard of which rank 0 lacks a chunk.
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
    # What starts at rank 0 is there before the first step, whatever else arrives.
    after = np.full(int(hops.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(after, to_rank_0[base.shard], step)
    after[0] = -1
    early = np.flatnonzero(after[at_tail[base.route, base.shard]] >= step)
    if len(early):
        row = int(early[0])
        text = (
            f"row {row} sends shard {int(base.shard[row])} in step {int(step[row])}, before all shards as far are there"
        )
        yield ScheduleViolation("sent-before-received", text)


def _intervals(part: SymmetricGather) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, end) of what rank 0 holds in the end, its own shard too, in chunks along all shards, by start."""
    chunks = part.chunks_per_shard
    first = part.base.shard.astype(np.int64) * chunks
    starts = np.concatenate([[0], first + part.base.lo])
    ends = np.concatenate([[chunks], first + part.base.hi])
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]


def _duplicates(part: SymmetricGather) -> int:
    """Return how many chunks rank 0 gets that it has, once nothing is missing."""
    starts, ends = _intervals(part)
    return int((ends - starts).sum()) - part.topology.compute_count * part.chunks_per_shard


def _symmetric_cost(schedule: SymmetricSchedule, size_bytes: int | None) -> Cost:
    """Return the exact cost: steps follow one another, each as long as its slowest link, the same at every rank."""
    seconds = None if size_bytes is None else Fraction(size_bytes, bytes_per_second(schedule.topology))
    time_per_byte = latency_s = time_s = Fraction(0)
    for part in _gathers(schedule):
        chunk = Fraction(1, part.chunks_per_shard * part.topology.compute_count)
        loads = part.loads()
        incoming = [part.topology.links[link] for link in range(loads.shape[1])]
        for period in loads.tolist():
            used = [
                (chunk * load / link.bandwidth, link.latency_s)
                for load, link in zip(period, incoming, strict=True)
                if load
            ]
            time_per_byte += max((time for time, _ in used), default=Fraction(0))
            latency_s += max((latency for _, latency in used), default=Fraction(0))
            time_s += max((latency + time * (seconds or 0) for time, latency in used), default=Fraction(0))
    return _whole_cost(schedule, time_per_byte, latency_s, None if seconds is None else time_s)
