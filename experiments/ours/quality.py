"""Experiments on the quality of schedules: after link failures, after lowering to programs, and across methods."""

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from chorale.experiments.framework.experiment import Column, Experiment, Row, columns, synthesized
from chorale.experiments.framework.plots import SIZE, Chart, line_points
from chorale.experiments.swing.curves import OVERHEAD_US
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.simulation.simulate import Congestion, congestion_of
from chorale.synth.targets.registry import resources_of
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, SwitchAbility, Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import Pricing, lowering_loss, program_time_per_byte, traffic_of_method
from chorale.tuner.files.schedule_files import load_topology

FAILURE_QUALITY_NETWORKS = ("torus:8x8", "hyperx:8x8", "circulant:64,5,6")
_SLOW = ("hyperx:8x8",)
PERCENT = (0, 1, 2, 5)
SEEDS = (0, 1, 2)
METHODS = ("forest", "bfb")
_FAILURES = [
    (spec, percent, seed)
    for spec in FAILURE_QUALITY_NETWORKS
    for percent in PERCENT
    for seed in (SEEDS if percent else SEEDS[:1])
]
"""(network, percentage of its links that fail, seed with which these links are chosen)."""
_ABILITIES = (SwitchAbility(reduce=True), SwitchAbility(multicast=True), SwitchAbility(True, True))
_MORE_LINKS = 2
_LIMITED_SHARE = 0.2


def _failure_quality_rows(case: tuple[str, int, int]) -> list[Row]:
    """Return a row for each method: its verified schedule's time relative to the bound, which `forest` must reach."""
    network, percent, seed = case
    topology = parse_topology(network)
    ends = np.sort(np.stack([topology.links.src, topology.links.dst]), axis=0)
    pairs, ids, spec = np.unique(ends, axis=1).T.tolist(), topology.node_ids, topology.spec
    if percent:  # at least one pair of nodes loses its links
        lost = random.Random(seed).sample(pairs, max(1, round(len(pairs) * percent / 100)))  # noqa: S311
        spec = f"without({spec};{';'.join(f'link={ids[low]}-{ids[high]}' for low, high in lost)})"
    facts = {"nodes": topology.compute_count, "network": network, "percent": percent, "seed": seed, "spec": spec}
    try:
        survivor = parse_topology(spec)
    except InvalidInput as error:
        return [{**facts, "method": None, "reason": str(error), "holds": True}]
    least, rows = lower_bound(survivor, ALLGATHER).value, list[Row]()
    for method in METHODS:
        time_per_byte = synthesized(method, survivor).cost.time_per_byte
        rows.append({
            **facts, "method": method, "time_per_byte": str(time_per_byte), "over_bound": str(time_per_byte / least),
            "reason": None if time_per_byte == least else "shortest paths only cannot go round what failed",
            "holds": time_per_byte == least if method == "forest" else time_per_byte >= least,
        })  # fmt: skip
    return rows


FAILURE_QUALITY = Experiment(
    name="failure-quality",
    question="How much slower are exact schedules when 1, 2 or 5 % of the links are lost?",
    source="ours; links are lost both ways, chosen by a seed",
    columns=columns(
        "network",
        Column("lost", lambda row: f"{row['percent']} %"),
        "seed | method | T_B / M=time_per_byte:exact | over the bound=over_bound:exact | reason",
    ),
    cases=_FAILURES,
    quick=[case for case in _FAILURES if case[0] not in _SLOW and case[2] == SEEDS[0]],
    evaluate=_failure_quality_rows,
    plot=Chart(
        line_points("{network}", "{method}", "percent", "time_per_byte"),
        "% of links lost",
        "T_B / M",
        log="",
        dots=True,
    ),
)


TARGET = "msccl-xml"
LOWERING_QUALITY_SIZES = (2**24, 2**30)
LARGE_BUFFER, SMALL_BUFFER = 2**22, 2**18
LOWERING_QUALITY_SLOW = ("mi250:2",)
_SAME = 1e-9  # relative rounding error of simulated times
_SMALL = 0.02


class LoweringCase(NamedTuple):
    """A schedule and how it is lowered.

    k:        trees per root; None for the smallest optimal number
    channels: number of channels
    split:    number of parts into which each chunk is split
    """

    spec: str
    method: str
    collective: str
    k: int | None = None
    channels: int = 1
    split: int = 1

    def schedule(self) -> VerifiedSchedule:
        return synthesized(self.method, self.spec, self.collective, k=self.k)

    def options(self, verified: VerifiedSchedule) -> LoweringOptions:
        return LoweringOptions(TARGET, self.channels, chunks=self.split * verified.schedule.chunks_per_shard)


CASES = (
    *(LoweringCase("hypercube:3", "bfb", name) for name in ("allgather", "reduce_scatter", "allreduce")),
    *(LoweringCase("torus:4x4", "bfb", name) for name in ("allgather", "reduce_scatter", "allreduce")),
    LoweringCase("torus:4x4", "bfb", "reduce_scatter", channels=2),
    *(LoweringCase("torus:4x4", "forest", name) for name in ("allgather", "allreduce")),
    *(LoweringCase("a100:2", "forest", name, k) for k in (None, 1) for name in ("allgather", "allreduce")),
    LoweringCase("a100:2", "forest", "allgather", 1, channels=2),
    LoweringCase("a100:2", "forest", "allreduce", 1, channels=4),
    LoweringCase("a100:2", "forest", "allreduce", 1, channels=2, split=4),
    *(LoweringCase("mi250:2", "forest", name, k) for k in (None, 1) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, channels=4) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, channels=16) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, split=4) for name in ("allgather", "allreduce")),
)  # fmt: skip


def row_of(case: LoweringCase, verified: VerifiedSchedule, program: Program) -> Row:
    """Return a row that says how much slower the program is than its schedule at each size and buffer size, and why.

    `holds` is true if no link transfers more than in the schedule, nothing is faster than the model allows, and
    programs of stepped schedules with one channel are as fast as their schedules.
    """
    losses = [lowering_loss(verified, program, size, LARGE_BUFFER) for size in LOWERING_QUALITY_SIZES]
    streamed = lowering_loss(verified, program, LOWERING_QUALITY_SIZES[-1], SMALL_BUFFER)
    topology = verified.schedule.topology
    on_links = program_time_per_byte(program, topology) / verified.cost.time_per_byte - 1
    pipelined = verified.schedule.kind == "pipelined"
    # Each step has its own busiest link, so a link's total over all steps may be less than the schedule's cost.
    as_planned = on_links == 0 if pipelined else on_links <= 0
    exact = pipelined or case.channels > 1 or max(map(abs, (*losses, streamed))) <= _SAME
    if max(losses[-1], streamed) <= _SAME:
        reason = None
    elif not pipelined:
        reason = "channels of a connection are apart by a step, and share its links"
    elif streamed <= _SMALL:
        reason = "trees fill step by step; small buffers make the steps short"
    else:
        reason = "trees take turns on a connection: one that waits holds up the next"
    return {
        **{name: value for name, value in case._asdict().items() if name != "channels"},
        "channels_asked": case.channels,
        "nodes": topology.compute_count,
        "time_per_byte": str(verified.cost.time_per_byte),
        "loss_on_links": str(on_links),
        "loss": dict(zip(map(str, LOWERING_QUALITY_SIZES), losses, strict=True)),
        "loss_small_buffers": streamed,
        **resources_of(program),
        "chunks": program.chunks,
        "reason": reason,
        "holds": as_planned and exact and min(*losses, streamed) >= -_SAME,
    }


def _percent(part: float) -> str:
    return "0" if abs(part) <= _SAME else f"{part:.1%}"


LOWERING_QUALITY = Experiment(
    name="lowering-quality",
    question="What does a program lose against the exact cost of its schedule?",
    source=f"ours; {TARGET}, flow model without latencies, buffers of 4 MiB (small: 256 KiB)",
    columns=columns(
        "spec",
        Column(
            "schedule",
            lambda row: f"{row['method']} {row['collective']}" + ("" if row["k"] is None else f", k {row['k']}"),
        ),
        "split | channels | blocks=threadblocks_max | steps=steps_max | scratch=scratch_chunks_max | chunks",
        "busiest link=loss_on_links",
        Column("16 MiB", lambda row: _percent(row["loss"][str(LOWERING_QUALITY_SIZES[0])])),
        Column("1 GiB", lambda row: _percent(row["loss"][str(LOWERING_QUALITY_SIZES[1])])),
        Column("small buffers", lambda row: _percent(row["loss_small_buffers"])),
        Column("why", lambda row: row["reason"] or "nothing lost"),
    ),
    cases=CASES,
    quick=[case for case in CASES if case.spec not in LOWERING_QUALITY_SLOW],
    evaluate=lambda case: [row_of(case, verified := case.schedule(), lower(verified, case.options(verified)))],
)


SIDE_BY_SIDE_NETWORKS = (
    "torus:8x8", "torus:16x4", "torus:4x4x4",
    "hyperx:8x8", "genkautz:4,64", "circulant:64,5,6",
    "hxmesh:2,4x4", "a100:2", "mi250:2",
)  # fmt: skip
"""Grids, other direct networks, and networks with switches. All have 64 ranks, except the last two (16 and 32)."""
SIDE_BY_SIDE_SLOW = ("hxmesh:2,4x4", "mi250:2")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "BFB": ("bfb",),
    "forest": ("forest",),
    "Swing": ("swing-latency", "swing"),
    "rings": ("hamiltonian-ring", "ring", "biring"),
}
"""Line in the picture -> its methods. On each network, the fastest method that supports the network is shown."""
SIDE_BY_SIDE_SIZES = tuple(2**10 * 4**power for power in range(12))
_ROUNDING = 1 - 1e-12


def _side_by_side_rows(spec: str) -> list[Row]:
    given = {"alpha_us": str(OVERHEAD_US), "link_latency_us": None, "hop_us": None, "link_gbps": "400"}
    pricing = Pricing.of(given, None)
    topology = load_topology(spec)
    model = pricing.network(topology)
    costs: dict[str, dict[str, Congestion]] = {family: {} for family in FAMILIES}
    for family, methods in FAMILIES.items():
        for method in methods:
            with suppress(InvalidInput):  # bfb does not support switches; Hamiltonian rings need certain shapes
                traffic = traffic_of_method(method, spec, "allreduce", pricing, None).traffic
                costs[family][method] = congestion_of(traffic)
    bound_per_byte = lower_bound(topology, ALLREDUCE).value / model.unit_bytes_per_s(topology)
    rows: list[Row] = []
    for size_bytes in SIDE_BY_SIDE_SIZES:
        times = {
            family: min((float(cost.seconds(model, size_bytes)), method) for method, cost in of_methods.items())
            for family, of_methods in costs.items()
            if of_methods
        }
        fastest = min(times, key=times.__getitem__)
        bound_s = float(bound_per_byte * size_bytes)
        rows.append({
            "nodes": topology.compute_count,
            "spec": spec,
            "size_bytes": size_bytes,
            "us": {family: seconds * 1e6 for family, (seconds, _) in times.items()},
            "of_bound": {family: bound_s / seconds for family, (seconds, _) in times.items()},
            "method": {family: method for family, (_, method) in times.items()},
            "fastest": fastest,
            "bound_us": bound_s * 1e6,
            "reason": None,
            "holds": all(seconds >= bound_s * _ROUNDING for seconds, _ in times.values()),
        })  # fmt: skip
    return rows


def _time(family: str) -> Column:
    return Column(f"{family}, us", lambda row: f"{row['us'][family]:.4g}" if family in row["us"] else "")


SIDE_BY_SIDE = Experiment(
    name="side-by-side",
    question="Where do BFB, packed trees, Swing and rings win, on the same networks?",
    source=f"ours; 400 Gbit/s or a fabric's own rates, 100 ns a link, 300 ns a hop, {float(OVERHEAD_US)} us a message",
    columns=columns(
        "spec",
        "size=size_bytes:bytes",
        *map(_time, FAMILIES),
        "bound, us=bound_us:.4g",
        Column("fastest", lambda row: f"{row['fastest']}: {row['method'][row['fastest']]}"),
    ),
    cases=tuple(SIDE_BY_SIDE_NETWORKS),
    quick=[spec for spec in SIDE_BY_SIDE_NETWORKS if spec not in SIDE_BY_SIDE_SLOW],
    evaluate=_side_by_side_rows,
    plot=Chart(
        line_points("{spec}", "", "size_bytes", "of_bound"),
        SIZE,
        "least possible time of the bytes / time",
        log="x",
        percent=True,
    ),
)


_WIDTHS = (1, 1, 2, 3, 4)
_ABLE_SHARE = 0.7


def random_able_fabric(seed: int, most_ranks: int = 7, most_switches: int = 4) -> Topology:
    """Return a connected network of 2 to `most_ranks` ranks and 1 to `most_switches` switches.

    At least one of the switches can reduce and multicast data. Links have the same bandwidth in both directions.
    """
    source = random.Random(seed)  # noqa: S311 - a sample of networks, not a secret
    while True:
        ranks, switches = source.randint(2, most_ranks), source.randint(1, most_switches)
        nodes = range(ranks + switches)
        width = {(source.randrange(node), node): source.choice(_WIDTHS) for node in nodes[1:]}
        for _ in range(source.randint(0, len(nodes))):
            low, high = sorted(source.sample(nodes, 2))
            width[low, high] = source.choice(_WIDTHS)
        able = {node: SwitchAbility(True, True) for node in nodes[ranks:] if source.random() < _ABLE_SHARE}
        links = [Link(src, dst, Fraction(value)) for (src, dst), value in width.items()]
        links += [Link(link.dst, link.src, link.bandwidth) for link in links]
        names = tuple(map(str, nodes))
        try:
            if able:
                return check_topology(Topology(f"random {seed}", names, ranks, Links.build(links), abilities=able))
        except InvalidInput:
            continue


def random_mixed_fabric(seed: int, most_ranks: int = 5, most_switches: int = 3) -> Topology:
    """Return a network with two to three times the links of `random_able_fabric` and more kinds of switches.

    On about half of the networks, links may have twice the bandwidth in one direction. Some switches reduce data,
    multicast data or do both. About a fifth of the reducing switches do so at a limited bandwidth: 1/2, 1 or 2.
    """
    source = random.Random(seed)  # noqa: S311 - a sample of networks, not a secret
    sparse = random_able_fabric(seed, most_ranks, most_switches)
    nodes = range(sparse.node_count)
    width = {(link.src, link.dst): link.bandwidth for link in sparse.links}
    for _ in range(_MORE_LINKS * len(nodes)):
        low, high = source.sample(nodes, 2)
        width[low, high] = width[high, low] = Fraction(source.choice(_WIDTHS))
    if source.random() < 0.5:
        width = {ends: value * source.choice((1, 2)) for ends, value in width.items()}
    able = {node: source.choice(_ABILITIES) for node in sparse.abilities}
    for node, ability in able.items():
        if ability.reduce and source.random() < _LIMITED_SHARE:
            able[node] = replace(ability, reduce_bandwidth=source.choice((Fraction(1, 2), Fraction(1), Fraction(2))))
    links = Links.build(Link(*ends, value) for ends, value in width.items())
    network = Topology(f"mixed {seed}", sparse.node_ids, sparse.compute_count, links, abilities=able)
    return check_topology(network)
