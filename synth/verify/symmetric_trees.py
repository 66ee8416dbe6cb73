"""Verification of trees in symmetric form: those of the first roots replayed, translations and loads checked.

Independent of the synthesizers. Why looking at the first roots is enough: let the translations be automorphisms of the
network that form a group of which exactly one member takes the first rank of an orbit to any other rank of it. Shards
do not depend on one another in an allgather, so a schedule is right if the rows of every shard by themselves are; and
the rows of a shard are the image, under the one member that takes the first rank of its orbit to its root, of rows
that were replayed chunk by chunk. Images of routes are routes, over links of equal bandwidth and latency.

What a link carries is the sum, over all members g, of what the base rows put on its preimage under g. A group takes
every link of an orbit to any other equally often, |group| / |orbit| times, so that is the sum of the base loads over
the orbit times that number: exact, for every link.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.symmetric import SymmetricSchedule
from chorale.synth.schedule.symmetric_trees import SymmetricTrees
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.topology import bytes_per_second, transpose_with_links
from chorale.synth.topology.translations import Translations
from chorale.synth.verify import replay
from chorale.synth.verify.conditions import structural_violations
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
    return [], (_cost(schedule, loads, size_bytes), _summary(schedule, loads, duplicates))


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
    offsets, size = np.array([0, part.chunks_per_shard], dtype=np.int64), np.zeros(0, dtype=np.int64)
    unused = np.zeros((1, 1), dtype=np.uint16)
    duplicates = 0
    for index, root in enumerate(roots.tolist()):
        rows = base.select(order[bounds[index] : bounds[index + 1]])
        ends, nothing = (sources[rows.route], destinations[rows.route]), np.zeros(len(rows))
        table = np.array([rows.step, *ends, nothing, rows.lo, rows.hi, nothing], dtype=np.int32)
        arrival = np.full((part.topology.compute_count, part.chunks_per_shard), replay.NEVER, dtype=np.uint16)
        arrival[root] = 0
        again, _, _ = replay.record_times(table, 0, 1, offsets, size, arrival, unused, unused)
        duplicates += again
        early, row, _, _ = replay.check_times(table, 0, 1, offsets, arrival, unused)
        if early:
            text = f"row {int(order[bounds[index] + row])} sends a chunk before it is there"
            return [ScheduleViolation("sent-before-received", text)], duplicates
        missing = np.argwhere(arrival == replay.NEVER)
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


def _cost(schedule: SymmetricSchedule, loads: list[Loads], size_bytes: int | None) -> Cost:
    """Return the exact cost: each part streams as long as its slowest link; one follows the other."""
    time_per_byte = latency_s = Fraction(0)
    for part, carried in zip(_trees(schedule), loads, strict=True):
        chunk = Fraction(1, part.chunks_per_shard * part.topology.compute_count)
        time_per_byte += part.topology.links.longest_time(carried) * chunk
        latency_s += period_latency_s(part.base_schedule())
    bandwidth = schedule.topology.node_bandwidth
    factor = None if bandwidth is None else time_per_byte * bandwidth
    if size_bytes is None:
        return Cost(schedule.steps, time_per_byte, factor, latency_s)
    time_s = latency_s + time_per_byte * size_bytes / bytes_per_second(schedule.topology)
    return Cost(schedule.steps, time_per_byte, factor, latency_s, time_s)


def _summary(schedule: SymmetricSchedule, loads: list[Loads], duplicates: int) -> LoadSummary:
    total = np.zeros(len(schedule.topology.links), dtype=np.int64)
    for part, carried in zip(_trees(schedule), loads, strict=True):
        scale = schedule.chunks_per_shard // part.chunks_per_shard
        if part is schedule.scatter:
            total[transpose_with_links(schedule.topology)[1]] += scale * carried
        else:
            total += scale * carried
    chunk = Fraction(1, schedule.chunks_per_shard * schedule.topology.compute_count)
    largest, smallest, idle = int(total.max()) * chunk, int(total.min()) * chunk, int((total == 0).sum())
    return LoadSummary(largest, smallest, int(total.sum()) * chunk, idle, duplicates)
