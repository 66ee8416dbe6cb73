"""Derives a large network's schedule from the schedule of the small network from which it was built (expansion).

The topology's spec says by which expansions the network was built from a base. If the database stores an allgather for
the base or its transpose, this schedule is expanded, otherwise a breadth-first broadcast on the base. Source: Zhao et
al., "Efficient Direct-Connect Topologies for Collective Communications", section 5, appendices A.6, D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Routes, Schedule, renamed_schedule
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph, line_order
from chorale.synth.topology.families.bases import base_entry, base_topology, load_bases
from chorale.synth.topology.registry import FileCall, FunctionCall, Number, SpecTree, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import Topology, link_ids, transpose, transpose_with_links

Column: TypeAlias = NDArray[np.integer]
Ids = NDArray[np.int32]
Origin = Literal["own", "mirrored", "bfb"]
ScheduleOfBase: TypeAlias = Callable[[str, bool], Schedule]
"""Function that makes the allgather of the network with a given spec, or of its transpose if the flag is true."""
_EXPANSIONS = ("bidirectional", "line", "degree", "power", "product")


def require_expandable(schedule: Schedule) -> None:
    """Raise InvalidInput unless `schedule` is a stepped allgather over single links."""
    if (
        schedule.collective != ALLGATHER
        or schedule.kind != "stepped"
        or not schedule.routes.is_direct(len(schedule.topology.links))
    ):
        rule = "only stepped allgathers over direct links can be expanded, not a {}"
        raise InvalidInput(rule, f"{schedule.kind} {schedule.collective} by {schedule.method}", "expand an allgather")


def require_size(transfers: int, topology: Topology) -> None:
    """Raise InvalidInput if an expanded schedule with this number of transfers would be too large."""
    if transfers > MAX_TRANSFERS:
        rule = f"an expanded schedule must have at most {MAX_TRANSFERS} transfers"
        raise InvalidInput(rule, f"{transfers} on {topology.spec}", "choose fewer nodes, or bfb, which makes fewer")


def allgather_from_columns(
    base: Schedule, topology: Topology, steps: int, chunks: int, columns: Sequence[Column]
) -> Schedule:
    """Return an allgather made of `columns` (step, route, shard, lo, hi), with the method and parameters of `base`."""
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    routes = Routes.direct(len(topology.links))
    return Schedule(topology, ALLGATHER, "stepped", steps, chunks, transfers, routes, base.method, base.parameters)


def repeat_rows(counts: Column) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Repeat row r `counts[r]` times; return (old row of each new row, index of the new row among the copies).

    counts [2, 0, 3] give [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]. O(new rows).
    """
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = (np.cumsum(counts) - counts).astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - start[owner]


def bidirectional_schedule(forwards: Schedule, backwards: Schedule, topology: Topology) -> Schedule:
    """Combine two allgathers into one on `topology`, the union of a network G and its transpose (all links reversed).

    `forwards` sends the first half of every shard over G, and `backwards` sends the second half over the transpose of
    G. The two schedules share no links, so their steps run in parallel. The number of chunks is twice the least common
    multiple of both schedules' chunk counts. O(rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.6, where the
    network is reverse-symmetric and `backwards` is the image of `forwards`.
    """
    require_expandable(forwards)
    require_expandable(backwards)
    half = lcm(forwards.chunks_per_shard, backwards.chunks_per_shard)
    joined = [  # the links of G, then the links of the transpose
        np.concatenate([getattr(schedule.topology.links, name) for schedule in (forwards, backwards)])
        for name in ("src", "dst", "bandwidth_class", "latency_class")
    ]
    ids = np.split(link_ids(joined[0], joined[1], joined[2], joined[3]), [len(forwards.topology.links)])
    parts: list[tuple[Column, ...]] = []
    for schedule, own_ids, first in ((forwards, ids[0], 0), (backwards, ids[1], half)):
        rows, factor = schedule.transfers, half // schedule.chunks_per_shard
        lo, hi = (column.astype(np.int64) * factor + first for column in (rows.lo, rows.hi))
        parts.append((rows.step, own_ids[rows.route], rows.shard, lo, hi))
    columns = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    return allgather_from_columns(forwards, topology, max(forwards.steps, backwards.steps), 2 * half, columns)


def degree_schedule(base: Schedule, copies: int, topology: Topology) -> Schedule:
    """Expand the allgather `base` to `topology`, which has `copies` copies of every node of the network G of `base`.

    When `base` sends the shard of v from u to w, copy j of u sends the shard of copy j of v to all copies of w. In an
    additional step, every node receives the shards of the other copies of the same node, in equal parts over its
    incoming links. The new number of chunks is the least common multiple of the old number and the nodes' numbers of
    incoming links. G must have no self-loops. O(new rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 2.
    """
    require_expandable(base)
    rows = base.transfers
    require_size(len(rows) * copies**2 + len(topology.links) * (copies - 1), topology)
    # Row: a link from u to w of the base. Column j * copies + i: the new link from copy j of u to copy i of w.
    links, copy = base.topology.links, np.arange(copies)
    src = (links.src[:, None] * np.int64(copies) + np.repeat(copy, copies)).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + np.tile(copy, copies)).ravel()
    classes = (np.repeat(column, copies**2) for column in (links.bandwidth_class, links.latency_class))
    ids = link_ids(src, dst, *classes).reshape(len(links), copies**2)
    # In the last step, every link has copies - 1 transfers, one for each other copy of the link's target (`turn` is
    # its index). The target receives that copy's shard in `parts` equal parts, one over each of its incoming links.
    last_links, first_in = topology.links, topology.links.incoming_offsets(topology.node_count)
    last, turn = repeat_rows(np.full(len(last_links), copies - 1))
    receiver = last_links.dst[last]
    own_copy, parts = receiver % copies, np.diff(first_in)[receiver]
    last_shard = receiver - own_copy + (own_copy + 1 + turn) % copies
    chunks = lcm(base.chunks_per_shard, int(np.lcm.reduce(parts))) if copies > 1 else base.chunks_per_shard
    factor, size, part = chunks // base.chunks_per_shard, chunks // parts, last - first_in[receiver]
    row = np.repeat(np.arange(len(rows)), copies**2)
    shard = (rows.shard[:, None].astype(np.int32) * copies + np.repeat(copy, copies)).ravel()
    lo, hi = (column.astype(np.int64)[row] * factor for column in (rows.lo, rows.hi))
    columns: list[Column] = [rows.step[row], ids[rows.route].ravel(), shard, lo, hi]
    final = (np.full(len(last), base.steps), last, last_shard, part * size, (part + 1) * size)
    joined = [np.concatenate(pair) for pair in zip(columns, final, strict=True)]
    return allgather_from_columns(base, topology, base.steps + (copies > 1), chunks, joined)


def power_schedule(base: Schedule, times: int, topology: Topology) -> Schedule:
    """Expand the allgather `base` to `topology`, the Cartesian product of `times` copies of the base network.

    Every shard is cut into `times` parts. Part i is sent as in `base` along dimension i. Then everything gathered so
    far is sent along dimension i + 1, and so on cyclically. At any time, each dimension carries one part. The numbers
    of steps and chunks are multiplied by `times`. O(new rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 14.
    """
    require_expandable(base)
    nodes = base.topology.node_count
    require_size(len(base.transfers) * times * sum(nodes ** (times - 1 + stage) for stage in range(times)), topology)
    rows, count = base.transfers, base.topology.node_count
    rank = np.arange(count**times, dtype=np.int32).reshape([count] * times)
    # `ids[axis]`: ids of the links along this axis of the grid `rank`, indexed by the base's link on this axis and by
    # the position on the other axes.
    links, axes = base.topology.links, range(times)
    ends = [[np.take(rank, side, axis) for axis in axes] for side in (links.src, links.dst)]
    columns = [np.concatenate([grid.ravel() for grid in side]) for side in ends]
    for column in (links.bandwidth_class, links.latency_class):
        spread = [np.moveaxis(np.broadcast_to(column, (*rank.shape[1:], len(links))), -1, axis) for axis in axes]
        columns.append(np.concatenate([grid.ravel() for grid in spread]))
    by_axis = np.split(link_ids(columns[0], columns[1], columns[2], columns[3]), times)
    ids = [part.reshape(grid.shape) for part, grid in zip(by_axis, ends[0], strict=True)]
    chunks, parts = base.chunks_per_shard, []
    for part in range(times):
        for stage in range(times):
            axis = (part + stage) % times
            gathered = [(part + before) % times for before in range(stage)]
            pending = [other for other in range(times) if other != axis and other not in gathered]
            order = [axis, *gathered, *pending]
            shape = (-1, count**stage, count ** (times - 1 - stage))
            route = ids[axis].transpose(order).reshape(shape)[rows.route][:, None, :, :]
            shard = rank.transpose(order).reshape(shape)[rows.shard][:, :, None, :]
            route, shard = np.broadcast_arrays(route, shard)
            copies = route.size // max(1, len(rows))
            step, lo, hi = (
                np.repeat(column.astype(np.int32) + offset, copies)
                for column, offset in (
                    (rows.step, stage * base.steps),
                    (rows.lo, part * chunks),
                    (rows.hi, part * chunks),
                )
            )
            parts.append((step, route.ravel(), shard.ravel(), lo, hi))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return allgather_from_columns(base, topology, times * base.steps, times * chunks, columns)


def line_schedule(base: Schedule, topology: Topology) -> Schedule:
    """Expand the allgather `base` to `topology`, the line graph L(G) of the network G of `base`.

    A node of L(G) is a link of G. In a new first step, each node sends its shard to all its neighbours. Then, when
    `base` sends the shard of v from u to w, node uw sends the shards of all links into v to all links out of w, but no
    shard to its own node. The number of chunks is unchanged. Empty steps, which occur only if a node has one link, are
    left out. O(d^2 * rows of `base`) for degree d.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 1.
    """
    require_expandable(base)
    rows, links, nodes = base.transfers, base.topology.links, np.arange(base.topology.node_count + 1)
    # The links out of node w are ranks `first_out[w]` to `first_out[w + 1] - 1` of L(G). Link e into w, followed by the
    # link of rank r, is link `first_into[r] + e - first_in[w]` of L(G).
    order = line_order(base.topology)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    source = links.src[order]
    first_out = np.searchsorted(source, nodes).astype(np.int32)
    first_in = links.incoming_offsets(base.topology.node_count).astype(np.int32)
    fan_out, fan_in = np.diff(first_out), np.diff(first_in)
    first_into = (np.cumsum(fan_in[source]) - fan_in[source]).astype(np.int32)
    link = rows.route.astype(np.int32)
    through = links.dst[link]
    transfers = np.dot(fan_out[through].astype(np.int64), fan_in[rows.shard])
    require_size(len(topology.links) + int(transfers), topology)
    row, out_number = repeat_rows(fan_out[through])
    receiver = first_out[through][row] + out_number
    route = first_into[receiver] + (link - first_in[through])[row]
    copy, in_number = repeat_rows(fan_in[rows.shard][row])
    row, receiver, route = row[copy], receiver[copy], route[copy]
    shard = rank[first_in[rows.shard][row] + in_number]
    needed = shard != receiver
    row, route, shard = row[needed], route[needed], shard[needed]
    first = np.flatnonzero(topology.links.src != topology.links.dst)
    used = np.bincount(rows.step[row]) > 0
    later_steps, step = int(np.count_nonzero(used)), (np.cumsum(used).astype(np.int32) - 1)[rows.step[row]]
    zeros, full = np.zeros(len(first), dtype=np.int32), np.full(len(first), base.chunks_per_shard)
    parts = (
        (zeros, step + 1),
        (first, route),
        (topology.links.src[first], shard),
        (zeros, rows.lo[row]),
        (full, rows.hi[row]),
    )
    columns = [np.concatenate(part) for part in parts]
    return allgather_from_columns(base, topology, 1 + later_steps, base.chunks_per_shard, columns)


def base_schedule(name: str, topology: Topology | None = None, *, transposed: bool = False) -> Schedule:
    """Return the allgather that the database stores for the base `name`, without verifying it.

    Args:
        topology: the network of the result, which must be equal to the base but may have another spec, such as diamond;
            None for base:NAME or its transpose.
        transposed: whether to return the schedule for the transpose of the base. One is stored only for bases that
            have a stored schedule and are not reverse-symmetric. If a base is reverse-symmetric, its own schedule runs
            on its transpose with renamed nodes.

    Raises:
        InvalidInput: if the base is unknown or has no such schedule, or if `topology` is another network.
    """
    entry = base_entry(name)
    sends = entry.transposed_schedule if transposed else entry.schedule
    if sends is None and transposed:
        rule = "the transpose of the base has no stored schedule: {}"
        advice = "use the method expand, which makes one from the stored schedule or by bfb"
        raise InvalidInput(rule, name, advice)
    if sends is None:
        rule = "the base {} has no schedule that could be expanded"
        raise InvalidInput(rule, name, f"use the method bfb, which reaches {entry.claim.steps} steps")
    base, what = base_topology(entry, f"base:{name}"), f"that of the base {name}"
    if transposed:
        base, what = transpose(base), f"the transpose of the base {name}"
    if topology is not None and topology.id != base.id:
        raise InvalidInput(f"the topology must be {what}", topology.spec, f"use {base.spec}")
    network = topology or base
    columns = np.array(sends.rows, dtype=np.int64).T
    steps = int(columns[0].max()) + 1
    bounds = ColumnBounds(steps, len(network.links), network.compute_count, sends.chunks_per_shard)
    return Schedule(
        topology=network,
        collective=ALLGATHER,
        kind="stepped",
        steps=steps,
        chunks_per_shard=sends.chunks_per_shard,
        transfers=bounds.pack((*columns, np.zeros(columns.shape[1], dtype=np.int64))),
        routes=Routes.direct(len(network.links)),
        method="expand",
        parameters={"base": name},
    )


def base_allgather(topology: Topology, executor: Executor, progress: Progress | None) -> Schedule:
    """Return the allgather of a base network. The schedule's `parameters` contain the base and the schedule's origin.

    The origin is "own" if the database stores a schedule for this network, possibly under another spec. It is
    "mirrored" if the database stores a schedule only for the transpose, and a search shows that the network is
    reverse-symmetric, so that this schedule can run with renamed nodes. Otherwise, the origin is "bfb".
    """
    schedule = stored_allgather(topology)
    if schedule is not None:
        return _with_origin(schedule, topology, "own")
    mirrored = transpose(topology)
    schedule = stored_allgather(mirrored)
    image = None if schedule is None else isomorphism(mirrored, topology)
    if schedule is None or image is None:
        return _with_origin(bfb_allgather(topology, executor, None, progress), topology, "bfb")
    return _with_origin(renamed_schedule(schedule, image, topology), topology, "mirrored")


def stored_allgather(topology: Topology) -> Schedule | None:
    """Return the stored allgather of this base or transposed base, or None if the database has none."""
    for name, entry in load_bases().items():
        if not entry.has_stored_schedule or not entry.nodes == topology.compute_count == topology.node_count:
            continue
        base = base_topology(entry, f"base:{name}")
        if base.id == topology.id:
            return base_schedule(name, topology)
        if entry.transposed_schedule is not None and transpose(base).id == topology.id:
            return base_schedule(name, topology, transposed=True)
    return None


def _with_origin(schedule: Schedule, topology: Topology, origin: Origin) -> Schedule:
    parameters = {"base": topology.spec, "base_method": origin}
    return replace(schedule, method="expand", parameters=parameters, certificate={})


def expanded_schedule(tree: SpecTree, schedule_of_base: ScheduleOfBase, transposed: bool = False) -> Schedule:
    """Return the allgather on the network that `tree` describes, or on its transpose if `transposed`.

    A product of identical factors is treated as a power. Other products are treated as bases, because the paper defines
    only BFB for them (theorem 13). Specs without an expansion are bases as well. Raises InvalidInput for a base in a
    file and for malformed arguments.
    """
    if isinstance(tree, FileCall):
        raise InvalidInput(
            "expand needs a base of the database, not {}", str(tree), "use bfb, or a base of the database"
        )
    is_product = isinstance(tree, FunctionCall) and tree.name == "product"
    if not isinstance(tree, FunctionCall) or (is_product and len(set(map(str, tree.arguments))) > 1):
        return schedule_of_base(str(tree), transposed)
    if tree.name == "transpose":
        return expanded_schedule(_inner(tree), schedule_of_base, not transposed)
    if tree.name == "bidirectional":
        forwards, backwards = (expanded_schedule(_inner(tree), schedule_of_base, each) for each in (False, True))
        both = bidirectional(forwards.topology)
        joined = bidirectional_schedule(forwards, backwards, both)
        other = backwards.parameters.get("base_method")
        return replace(joined, parameters={**joined.parameters, "transposed_base_method": other})
    if tree.name not in ("line", "degree", "power", "product"):
        return schedule_of_base(str(tree), transposed)
    is_single = tree.name == "line" and len(tree.arguments) == 1
    times = len(tree.arguments) if is_product else 1 if is_single else _number(tree)
    schedule = expanded_schedule(_inner(tree), schedule_of_base, transposed)
    network = schedule.topology
    if tree.name == "degree":
        return degree_schedule(schedule, times, degree_expansion(network, times, f"degree({network.spec};{times})"))
    if tree.name != "line":
        power = cartesian_product([network] * times, f"power({network.spec};{times})", "power")
        return power_schedule(schedule, times, power)
    for _ in range(times):
        network = schedule.topology
        schedule = line_schedule(schedule, line_graph(network, f"line({network.spec})"))
        if transposed:  # the target is the same network, but its ranks are in another order
            turned, origin = transpose_with_links(network)
            target = transpose(line_graph(turned, f"line({turned.spec})"))
            new_rank: NDArray[np.int64] = np.empty(len(origin), dtype=np.int64)
            new_rank[origin[line_order(turned)]] = np.arange(len(origin))
            schedule = renamed_schedule(schedule, new_rank[line_order(network)], target)
    return schedule


def _inner(call: FunctionCall) -> SpecTree:
    first = call.arguments[0]
    if not isinstance(first, SpecTree):
        raise InvalidInput(f"the first argument of {call.name} must be a topology spec", str(first), "write one")
    return first


def _number(call: FunctionCall) -> int:
    last = call.arguments[-1]
    if not isinstance(last, Number):
        raise InvalidInput(f"the last argument of {call.name} must be a whole number", str(last), "write one")
    return int(last.text)


def expand_allgather(
    topology: Topology, executor: Executor, chunks: int | None = None, progress: Progress | None = None
) -> Schedule:
    """Return the allgather that results from applying the expansions in `topology.spec` to the schedule of the base.

    The base's schedule is the one in the database or, if there is none, a BFB (see `base_allgather`). Raises
    InvalidInput for a spec without expansion if its network has no stored schedule, and for a base in a file.
    O(transfers).

    chunks: chunks per shard, a multiple of the number that the expansions need; None for that number itself
    """
    tree = inner = parse_spec(topology.spec)
    while isinstance(inner, FunctionCall) and inner.name == "transpose":
        inner = _inner(inner)
    is_expansion = isinstance(inner, FileCall) or (isinstance(inner, FunctionCall) and inner.name in _EXPANSIONS)
    if not is_expansion and stored_allgather(topology) is None and stored_allgather(transpose(topology)) is None:
        rule = "expand needs an expansion or a base with a schedule, not {}"
        raise InvalidInput(rule, topology.spec, "use bfb, or line(…), degree(…;n), power(…;n), bidirectional(…)")
    require_size(topology.compute_count * (topology.compute_count - 1), topology)
    schedule = expanded_schedule(tree, base_schedule_builder(executor, progress))
    if schedule.topology.id != topology.id:
        rule = "the network is not what its spec says: {}"
        raise InvalidInput(rule, topology.spec, "make it with parse_topology")
    needed = schedule.chunks_per_shard
    parameters = {"chunks": chunks, **schedule.parameters}
    schedule = replace(schedule, topology=topology, parameters=parameters)
    if chunks is None or chunks == needed:
        return schedule
    if chunks < 1 or chunks % needed:
        rule = f"chunks per shard must be a multiple of {needed} for this expansion"
        raise InvalidInput(rule, chunks, f"choose {needed}, or leave it out")
    rows, factor = schedule.transfers, chunks // needed
    lo, hi = rows.lo.astype(np.int64) * factor, rows.hi.astype(np.int64) * factor
    columns = (rows.step, rows.route, rows.shard, lo, hi)
    return allgather_from_columns(schedule, topology, schedule.steps, chunks, columns)


def base_schedule_builder(executor: Executor, progress: Progress | None = None) -> ScheduleOfBase:
    """Return a function that parses a base's spec and makes its allgather with `base_allgather`."""

    def make(spec: str, transposed: bool) -> Schedule:
        network = parse_topology(spec)
        return base_allgather(transpose(network) if transposed else network, executor, progress)

    return make
