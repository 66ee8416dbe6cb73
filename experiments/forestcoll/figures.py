"""ForestColl's figures 9 and 11, and the examples in the paper on bandwidth-optimal pipelines."""

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from chorale.experiments.framework.experiment import (
    Experiment,
    Interval,
    Row,
    columns,
    judge,
    max_flows_reach,
    min_seconds,
    short_text,
    synthesized,
)
from chorale.experiments.framework.plots import Chart, all_points, line_points
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.forest.network import network_of_links, trees_on_links
from chorale.synth.methods.forest.switch_removal import remove_switches
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

BOXES = (2, 4, 8, 16)
_QUICK_BOXES = 4
GPUS = 8
"""GPUs per box; rank r is in box r // 8."""
_SHARDS, _TIMES = "shards over InfiniBand each way", "T_B of a ring over T_B of trees"
_PRINTED_OVER, _PRINTED_OF_RING, _PRINTED_OF_TREES = "1.625", "15", "8"
_LOWER = (
    "the figure's trees are two paths, one in each box; ours cross over once too, and are as low as they can be, "
    "which costs nothing where an NVSwitch joins all GPUs of a box"
)
_NOT_PRINTED = "not in the paper: from four boxes on the links between them decide, for both"


def _figure_9_rows(case: tuple[str, int]) -> list[Row]:
    asked, boxes = case
    spec = f"a100:{boxes}"
    topology = parse_topology(spec)

    def row(quantity: str, ours: Fraction, printed: str | None) -> Row:
        verdict = None if printed is None else judge(printed, Interval.exactly(ours))
        return {
            "nodes": topology.compute_count, "spec": spec, "quantity": quantity, "printed": printed, "ours": str(ours),
            "verdict": verdict, "reason": _NOT_PRINTED if printed is None else None,
            "holds": verdict in (None, "match"),
        }  # fmt: skip

    if asked == _TIMES:
        over = synthesized("ring", topology).cost.time_per_byte / synthesized("forest", topology).cost.time_per_byte
        return [row(_TIMES, over, _PRINTED_OVER if boxes == BOXES[0] else None)]
    ring, tree = synthesized("ring", topology).schedule.expand(), synthesized("forest", topology, k=1).schedule.expand()
    rows = np.flatnonzero(tree.transfers.shard == 0)
    rows = rows[np.argsort(tree.transfers.step[rows], kind="stable")]
    links = [[int(tree.src[transfer]), int(tree.dst[transfer])] for transfer in rows]
    one_tree = row("the same, one tree per root", _shards_out_of_a_box(tree), _PRINTED_OF_TREES)
    return [
        row(f"{_SHARDS}, ring", _shards_out_of_a_box(ring), _PRINTED_OF_RING),
        {**one_tree, "reason": _LOWER, "tree": links},
    ]


def _shards_out_of_a_box(schedule: Schedule) -> Fraction:
    """Return the number of shards, counting repetitions, that GPUs in the first box send to GPUs in other boxes."""
    leave = (schedule.src // GPUS == 0) & (schedule.dst // GPUS != 0)
    transfers = schedule.transfers
    length = transfers.hi.astype(np.int64) - transfers.lo
    return Fraction(int(length[leave].sum()), schedule.chunks_per_shard)


FIGURE_9 = Experiment(
    name="forestcoll-figure-9",
    question="How often do trees and a ring cross between boxes of A100 GPUs, and what does it cost?",
    source="Zhao et al., ForestColl, section 5.3 and figure 9, which draws one tree; all counts and ratios are exact",
    columns=columns("nodes | spec | quantity | printed | ours=ours:exact | reason"),
    cases=[(_SHARDS, BOXES[0]), *((_TIMES, count) for count in BOXES)],
    quick=[(_SHARDS, BOXES[0]), *((_TIMES, count) for count in BOXES if count <= _QUICK_BOXES)],
    evaluate=_figure_9_rows,
    plot=Chart(line_points("{quantity}", "", "nodes", "ours"), "GPUs", "", log="x"),
)


FAMILIES: Mapping[str, tuple[int, ...]] = {"a100": (2, 4, 8, 16, 32, 64, 128), "mi250": (2, 4, 8, 16, 32, 64)}
"""Numbers of boxes by family. The first one is the baseline."""
_NETWORKS = [f"{family}:{boxes}" for family, counts in FAMILIES.items() for boxes in counts]
_SLOW = ("a100:64", "a100:128", "mi250:32", "mi250:64")
_REFERENCE_NODES = 64
_SUB_SECOND, _TENS_OF_MINUTES = "below 1 s", "tens of minutes"
_PRINTED: Mapping[str, str] = {"a100:2": _SUB_SECOND, "a100:4": _SUB_SECOND, "a100:128": _TENS_OF_MINUTES}
"""The paper's words about synthesis times; the figure's points are not printed as numbers."""
_MOST_S = {_SUB_SECOND: 1.0, _TENS_OF_MINUTES: 600.0}
_PUBLIC_CODE = {"a100:4": "the public Python code takes 60 CPU seconds here"}
_REPEATS = 3
_SLOWER = "one core, which may be slower than theirs"


def _conclude(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with their times relative to the first network in their family."""
    first: dict[str, float] = {}
    return [
        {**row, "times_the_first": row["seconds"] / first.setdefault(row["family"], row["seconds"])} for row in rows
    ]


def _figure_11_row(spec: str) -> Row:
    """Return a row with costs, times and verdicts. The paper claims optimal trees for all, but prints few times."""
    topology = parse_topology(spec)

    def make() -> Schedule:
        return synthesize_unverified("forest", topology, ALLGATHER, None, SerialExecutor()).expand()

    schedule = make()
    seconds = min_seconds(make, _REPEATS, time.process_time)
    cost, bound, flows_over_ours = verify(schedule).cost, lower_bound(topology, ALLGATHER), None
    if topology.compute_count <= _REFERENCE_NODES:  # how long NetworkX takes just to check that the time is possible
        flows_s = min_seconds(lambda: max_flows_reach(topology, cost.time_per_byte), 1, time.process_time)
        flows_over_ours = flows_s / seconds
    is_optimal, printed = cost.time_per_byte == bound.value, _PRINTED.get(spec)
    verdict, reason = {"quality": "match" if is_optimal else "worse"}, None
    if printed is not None:
        in_time = seconds <= _MOST_S[printed]
        ahead = "better" if printed == _TENS_OF_MINUTES else "match"
        verdict["seconds"] = ahead if in_time else "not reached"
        reason = _PUBLIC_CODE.get(spec) if in_time else _SLOWER
    return {
        "family": spec.partition(":")[0], "nodes": topology.compute_count, "spec": spec,
        "k": schedule.trees_per_root, "steps": cost.steps,
        "algbw_gb_per_s": float(1 / cost.time_per_byte), "algbw": short_text(1 / cost.time_per_byte),
        "seconds": seconds, "flows_over_ours": flows_over_ours, "printed": printed, "verdict": verdict,
        "reason": reason, "holds": is_optimal,
    }  # fmt: skip


FIGURE_11 = Experiment(
    name="forestcoll-figure-11",
    question="How long do optimal trees for up to 1,024 GPUs take to make, and are they optimal at every size?",
    source="Zhao et al., ForestColl, section 5.4 and figure 11, whose points are not printed; TACCL is not ours to run",
    columns=columns(
        "nodes | spec | k | height=steps | algbw, GB/s=algbw | printed time=printed | our CPU s=seconds:.3g",
        "over two boxes=times_the_first:.3g | NetworkX's flows over ours=flows_over_ours:.3g | reason",
    ),
    cases=_NETWORKS,
    quick=[spec for spec in _NETWORKS if spec not in _SLOW],
    evaluate=_figure_11_row,
    conclude=_conclude,
    alone=True,
    plot=Chart(
        all_points(
            line_points("time to make it, over that of two boxes", "{family}", "nodes", "times_the_first"),
            line_points("algbw in GB/s", "{family}", "nodes", "algbw_gb_per_s"),
        ),
        "GPUs",
        "",
    ),
)


CLUSTERS, RANKS = 2, 4
FAST, SLOW = 10, 1
"""A rank's bandwidths to its cluster's switch and to the global one: 10 b and b."""
_RANK_NAMES = [f"c{cluster}.{place}" for cluster in range(CLUSTERS) for place in range(RANKS)]


def figure_1() -> Topology:
    """Return the network of figure 1a with b = 1 GB/s."""
    switches = ["global", *(f"switch{cluster}" for cluster in range(CLUSTERS))]
    nodes = [NamedNode(rank, "compute") for rank in _RANK_NAMES] + [NamedNode(name, "switch") for name in switches]
    links = [NamedLink(rank, f"switch{rank[1]}", FAST, 0, True) for rank in _RANK_NAMES]
    links += [NamedLink(rank, "global", SLOW, 0, True) for rank in _RANK_NAMES]
    return assemble_topology("figure-1a", "GB/s", nodes, links)


def unwound() -> Topology:
    """Return the network of figure 1d: rings of ranks instead of switches. It wastes the global switch's bandwidth."""
    links, count = [], len(_RANK_NAMES)
    for index, rank in enumerate(_RANK_NAMES):
        after = index - RANKS + 1 if index % RANKS == RANKS - 1 else index + 1
        links += [
            NamedLink(rank, _RANK_NAMES[(index + 1) % count], SLOW, 0, False),
            NamedLink(rank, _RANK_NAMES[after], FAST, 0, False),
        ]
    return assemble_topology("figure-1d", "GB/s", [NamedNode(rank, "compute") for rank in _RANK_NAMES], links)


def _pipeline_examples_rows(_figure: str) -> list[Row]:
    """Return the rows for figure 1, the only example that the paper works out."""
    topology = figure_1()
    ranks, links = topology.compute_count, topology.links
    best, fixed = optimum(topology, ALLGATHER), fixed_k_optimum(topology, ALLGATHER, 1)
    out_of_one = Fraction(sum(links.bandwidths[place] for place in links.bandwidth_class[links.src == 0]))
    supply = np.full(ranks, best.k, dtype=np.int64)
    carried = trees_on_links(topology, best.trees_per_bandwidth)
    split = remove_switches(network_of_links(topology, carried, supply), names=topology.node_ids)
    verified = synthesized("forest", topology).cost.time_per_byte * ranks
    naive = optimum(unwound(), ALLGATHER).time_per_shard
    broadcast = optimum(topology, Collective(CollectiveName.BROADCAST, 0)).time_per_byte
    both = synthesized("forest", topology, ALLREDUCE).cost.time_per_byte
    found: list[tuple[str, str, int | str, Fraction | int]] = [
        ("time per shard that the cluster cut allows, in 1/b", "section 1, figure 1b", 1, best.time_per_shard),
        ("ranks in that cut", "figure 1b", RANKS, sum(1 for node in best.cut if node < ranks)),
        ("time per shard that one rank alone would allow", "section 1", "1/11", 1 / out_of_one),
        ("U, the trees per bandwidth", "section 2.1", 1, best.trees_per_bandwidth),
        ("k, the trees per root", "section 2.1", 1, best.k),
        ("time per shard with k = 1 given", "section 2.4", 1, fixed.time_per_shard),
        ("switches after edge splitting", "figure 2b", 0, split.network.nodes - ranks),
        ("time per shard of the verified schedule", "figure 2d", 1, verified),
        ("times as long if switches are unwound into rings", "figure 1d", 4, naive / best.time_per_shard),
        ("broadcast over allgather, at the optimum", "appendix B", 2, broadcast / best.time_per_byte),
        ("allreduce by two phases over allgather", "appendix C", 2, both / best.time_per_byte),
    ]
    rows: list[Row] = []
    for quantity, place, printed, ours in found:
        holds = Fraction(printed) == ours
        rows.append({
            "nodes": CLUSTERS * RANKS, "spec": "figure-1a", "quantity": quantity, "place": place,
            "printed": str(printed), "ours": str(ours), "verdict": "match" if holds else "not reached",
            "reason": None if holds else f"{printed} was printed, {ours} is certified", "holds": holds,
        })  # fmt: skip
    return rows


PIPELINE_EXAMPLES = Experiment(
    name="pipeline-examples",
    question="Do cuts, given k and switch removal come out as in the worked example of the pipeline paper?",
    source="Zhao et al., Bandwidth Optimal Pipeline Schedule for Collective Communication, figures 1 and 2",
    columns=columns("quantity | place | printed | ours | reason"),
    cases=["figure 1"],
    evaluate=_pipeline_examples_rows,
)
