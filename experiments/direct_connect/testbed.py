"""Reproduces figures 6, 11, 13 and 14: times of allreduce on small networks, modelled and measured live.

The paper ran its schedules on an optical testbed (section 8.1). We compute their times with the model that appendix A.2
fits to that testbed, measure them live on a slower emulated fabric, and check the paper's claims. Figure 6 compares the
best networks of degree 4 with rings and trees, figure 11 compares tori, figure 13 compares BFB on hypercubes with
algorithms for switched networks, and figure 14 fits lines to times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean, linear_regression, mean
from typing import Any

from chorale.experiments.framework.experiment import (
    DIRECT_CONNECT,
    Column,
    Experiment,
    Row,
    claim_row,
    columns,
    concatenate_rows,
    published,
    synthesized,
)
from chorale.experiments.framework.live import LiveTimes, measure_times
from chorale.experiments.framework.plots import SIZE, Chart, all_points, line_points
from chorale.runners.api.units import format_size
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, congestion_of
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import simulate_program

OURS, SHIFTED_RING, SHIFTED_BFB_RING, TREES = "ours", "shifted ring", "shifted BFB ring", "double binary tree"
ALPHA_US, FIXED_US, NODE_GBPS = Fraction("13.33"), Fraction("21.60"), 79
"""Constants that the paper fits to its testbed: microseconds per step and per call, and Gbit/s out of a node."""
LINKS_OF_A_NODE = 4
SIZES_BYTES: Mapping[str, int] = {"1 KB": 10**3, "1 MB": 10**6, "1 GB": 10**9}
LINK_MBPS = 25
"""Link bandwidth in live runs, in Mbit/s: a thousandth of the testbed's 25 Gbit/s."""
LIVE_SIZES_BYTES: Mapping[str, int] = {"1 KB": 2**10, "1 MB": 2**17, "1 GB": 2**21}
"""The paper's sizes -> the sizes that replace them in live runs.

A step takes a few hundred microseconds in live runs. At the first size, the number of steps dominates the time; at the
last size, the number of bytes does. At the middle size, both matter about equally on rings.
"""
TREE_CHUNKS = (1, 16)
"""Chunk counts to try for trees in live runs, because trees stream their chunks. Only the fastest time is used."""
_LINES: Sequence[tuple[Any, ...]] = (
    ("T_L", "steps", "small_us", "13.33 us a step + 21.60 us", (0.0171, 0.0621), 0.1, math.inf),
    ("T_B", "factor_us", "large_us", "79 of 100 Gbit/s", (0.0047, 0.0132), 0.02, 0.1),
)
SIMULATED, LIVE = "simulated", "live"
SHARED_CORES = (
    "the processes of all ranks share a few cores here, so that short vectors take as long as the cores need for the "
    "messages of all ranks together, and not as long as the steps of one"
)
_REPEATS = 4
_WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class Contender:
    """A network and a method for its allreduce schedule, to be compared with others.

    chunks: numbers of chunks per shard to try (None: the method chooses); at each size, only the fastest time is used
    """

    name: str
    spec: str
    method: str
    chunks: tuple[int | None, ...] = (None,)

    def verified(self, chunks: int | None = None) -> VerifiedSchedule:
        return synthesized(self.method, self.spec, ALLREDUCE, chunks=chunks)

    def program(self, chunks: int | None) -> Program:
        """Return the program that runs this contender's schedule on CPUs."""
        return lower(self.verified(chunks), LoweringOptions("oneccl-xml"))


def contenders(nodes: int) -> tuple[Contender, ...]:
    """Return the networks that figure 6 compares on `nodes` nodes: the one from table 5, rings and trees."""
    best = next(row for row in published("5").rows if row.nodes == nodes)
    return (
        Contender(OURS, best.spec, best.method),
        Contender(SHIFTED_RING, f"shiftedring:{nodes}", "hamiltonian-ring"),
        Contender(SHIFTED_BFB_RING, f"shiftedring:{nodes}", "bfb-ring"),
        Contender(TREES, f"dbt:{nodes}", "double-binary-tree", TREE_CHUNKS),
    )


def model_us(verified: VerifiedSchedule, size_bytes: int) -> float:
    """Predict the microseconds of an allreduce with the model fitted to the testbed; trees use the best chunk count."""
    cost = congestion_of(traffic_of(verified.schedule))
    model = NetworkModel.of(str(ALPHA_US), link_gbps=Fraction(NODE_GBPS, LINKS_OF_A_NODE))
    return float(cost.seconds(model, size_bytes) * 10**6 + FIXED_US)


def measure_contenders(rivals: Sequence[Contender], sizes_bytes: Sequence[int], repeats: int) -> dict[str, LiveTimes]:
    """Measure contenders; return name -> live times with the fastest chunk count at each size.

    Measurements of contenders on the same network are interleaved.
    """
    by_name: dict[str, LiveTimes] = {}
    for spec in dict.fromkeys(rival.spec for rival in rivals):
        sharing = [rival for rival in rivals if rival.spec == spec]
        programs = {f"{rival.name} {cut}": rival.program(cut) for rival in sharing for cut in rival.chunks}
        times = measure_times(parse_topology(spec), programs, sizes_bytes, LINK_MBPS, repeats)
        for rival in sharing:
            cuts = [times[f"{rival.name} {cut}"] for cut in rival.chunks]
            by_name[rival.name] = replace(cuts[0], us=tuple(map(min, zip(*(cut.us for cut in cuts), strict=True))))
    return by_name


@dataclass(frozen=True, slots=True)
class SpeedupClaim:
    """A claim: `better` takes less time than `worse` at `size`, by the fraction `printed` on average over `nodes`.

    reasons: origin of the times (model or live) -> why they do not show what the paper claims; without one, they must
    """

    size: str
    better: str
    worse: str
    nodes: tuple[int, ...]
    printed: float
    reasons: Mapping[str, str] = field(default_factory=dict)

    def row(self, where: str, times: Mapping[tuple[str, int, str], float]) -> Row:
        """Return the row of results for this claim. `times`: (size, node count, contender) -> microseconds."""
        measured = [n for n in self.nodes if (self.size, n, self.better) in times]
        value = fmean(1 - times[self.size, n, self.better] / times[self.size, n, self.worse] for n in measured)
        said = "as long as" if self.printed == 0 else f"{self.printed:.0%} less than"
        claim, reason = f"{self.better} takes {said} {self.worse}", self.reasons.get(where)
        row = claim_row(
            claim, value, self.printed - _WITHIN, self.printed + _WITHIN, reason,
            nodes=max(measured), where=where, size=self.size, at=measured, printed=self.printed,
        )  # fmt: skip
        return row if row["holds"] else {**row, "reason": "not explained"}


def times_rows(where: str, nodes: int, rivals: Sequence[Contender]) -> list[Row]:
    """Return a row for each size. `where` says whether the times come from the testbed's model or are measured."""
    facts: dict[str, Any] = {"kind": "times", "where": where, "nodes": nodes, "spec": "", "reason": None, "holds": True}
    if where == SIMULATED:
        sizes, schedules = SIZES_BYTES, {rival.name: rival.verified() for rival in rivals}
        us = [{name: model_us(one, size_bytes) for name, one in schedules.items()} for size_bytes in sizes.values()]
    else:
        sizes = LIVE_SIZES_BYTES
        times = measure_contenders(rivals, tuple(sizes.values()), _REPEATS)
        facts["ran_on"] = {name: time.where for name, time in times.items()}
        facts["reason"] = next((time.substitution for time in times.values() if time.substitution), None)
        us = [{name: time.us[place] for name, time in times.items()} for place in range(len(sizes))]
    return [
        {**facts, "size": size, "size_bytes": size_bytes, "us": of_size}
        for (size, size_bytes), of_size in zip(sizes.items(), us, strict=True)
    ]


def with_claims(claims: Sequence[SpeedupClaim], parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts, then rows that compare each claim with the model's times and the live times."""
    rows = concatenate_rows(parts)
    found = list(rows)
    for where in (SIMULATED, LIVE):
        here = [row for row in rows if row["where"] == where]
        times = {(row["size"], row["nodes"], name): us for row in here for name, us in row["us"].items()}
        found += [claim.row(where, times) for claim in claims if times]
    return found


def times_text(row: Row) -> str:
    return ", ".join(f"{name} {us:.5g}" for name, us in row.get("us", {}).items())


COLUMNS = columns("where | nodes | size", Column("us", times_text), "finding | ours=value:+.0% | reason")
_SOURCE = (
    f"simulated as appendix A.2 fits the testbed, live on emulated links of {LINK_MBPS} Mbit/s instead of 25 Gbit/s"
)


FIGURE_6_NODES = tuple(range(5, 13))
LIVE_NODES = (8, 12)
_LEVELS = "trees have 6 to 8 levels, each a step of 13.33 us here; the fit is of other schedules and may not be theirs"
_STREAMS = (
    "trees that stream without a gap carry half of the data on each link, in both directions, and need only 8/7 of "
    "the least time for 8 nodes; the trees of the testbed took about twice as long, as ours do live"
)
_FIGURE_6_CLAIMS = (
    SpeedupClaim("1 KB", OURS, SHIFTED_RING, (12,), 0.75, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 KB", OURS, TREES, (8, 10, 12), 0.2, {SIMULATED: _LEVELS, LIVE: SHARED_CORES}),
    SpeedupClaim("1 KB", SHIFTED_BFB_RING, SHIFTED_RING, (12,), 0.4, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", OURS, SHIFTED_RING, (12,), 0.5, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", OURS, TREES, (8, 10, 12), 0.45, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", SHIFTED_BFB_RING, SHIFTED_RING, (12,), 0.35, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 GB", OURS, TREES, (8, 10, 12), 0.5, {SIMULATED: _STREAMS}),
    SpeedupClaim("1 GB", OURS, SHIFTED_RING, (8, 10, 12), 0.0),
)


FIGURE_6 = Experiment(
    name="direct-connect-figure-6",
    question="How much faster is allreduce on the best small networks of degree 4 than on rings and trees?",
    source=f"{DIRECT_CONNECT}, figure 6; {_SOURCE}",
    columns=COLUMNS,
    cases=[*((SIMULATED, nodes) for nodes in FIGURE_6_NODES), *((LIVE, nodes) for nodes in LIVE_NODES)],
    quick=[(SIMULATED, nodes) for nodes in FIGURE_6_NODES],
    evaluate=lambda case: times_rows(case[0], case[1], contenders(case[1])),
    conclude=lambda parts: with_claims(_FIGURE_6_CLAIMS, parts),
    alone=True,
    plot=Chart(line_points("{where}, {size}", "", "nodes", "us"), "N", "allreduce in us", log=""),
)


FIGURE_13_NODES = 8
_NETWORKS = {"hypercube": "hypercube:3", "twisted": "twisted-hypercube:3"}
_BFB, _HALVING, _RING, _TREES = "BFB", "halving and doubling", "one ring", "double binary tree"
"""Algorithm names. NCCL cannot run here, so two of its algorithms, one ring and a double binary tree, represent it."""
_BASELINE = f"{_HALVING} on hypercube"
_FIGURE_13_RIVALS = tuple(
    Contender(f"{scheme} on {network}", spec, method, chunks)
    for network, spec in _NETWORKS.items()
    for scheme, method, chunks in (
        (_BFB, "bfb", (None,)),
        (_HALVING, "rabenseifner", (None,)),
        (_RING, "ring", (None,)),
        (_TREES, "double-binary-tree", TREE_CHUNKS),
    )
)
_FIGURE_13_CLAIMS = (
    SpeedupClaim("1 KB", f"{_BFB} on hypercube", _BASELINE, (FIGURE_13_NODES,), 0.0, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 KB", f"{_BFB} on twisted", _BASELINE, (FIGURE_13_NODES,), 0.2, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 GB", f"{_BFB} on hypercube", _BASELINE, (FIGURE_13_NODES,), 0.6),
    SpeedupClaim("1 GB", f"{_BFB} on twisted", _BASELINE, (FIGURE_13_NODES,), 0.6),
)


FIGURE_13 = Experiment(
    name="direct-connect-figure-13",
    question="How much faster is BFB on hypercubes of 8 nodes than what switched networks use?",
    source=f"{DIRECT_CONNECT}, figure 13; {_SOURCE}; "
    "NCCL by the two algorithms that it has, one ring and double binary trees",
    columns=COLUMNS,
    cases=[SIMULATED, LIVE],
    quick=[SIMULATED],
    evaluate=lambda where: times_rows(where, FIGURE_13_NODES, _FIGURE_13_RIVALS),
    conclude=lambda parts: with_claims(_FIGURE_13_CLAIMS, parts),
    alone=True,
    plot=Chart(line_points("{where}", "", "size_bytes", "us"), SIZE, "allreduce in us"),
)


FIGURE_14_NODES, _FIGURE_14_QUICK_NODES = (5, 6, 7, 8, 10, 12), (5,)
FIGURE_14_SIZES_BYTES = (2**10, 2**21)
"""At the first size, the steps dominate the time; at the second, the bytes. The paper used 1 KB and 1 GB."""
_FIGURE_14_REPEATS = 7
_NODE_MBPS = LINK_MBPS * LINKS_OF_A_NODE
_FIGURE_14_BUSY = (
    "a step here is a hand-over between processes that share a few cores, so it takes the longer the more of them "
    "there are; the testbed has a GPU for each"
)


def _line_row(
    points: Sequence[Row], line: str, x: str, y: str, printed: str, errors: tuple[float, float], near: float, far: float
) -> Row:
    """Fit a line that predicts key `y` of `points` from key `x`. Return a row with our relative errors and the paper's.

    line: T_L or T_B, the part of the time to which the line is fitted; a T_B line passes through the origin
    near, far: maximum mean error of a match, and maximum mean error that a busy machine (`_FIGURE_14_BUSY`) explains
    """
    xs, ys = [float(point[x]) for point in points], [point[y] for point in points]
    slope, fixed = linear_regression(xs, ys, proportional=line == "T_B")
    off = [abs(slope * at + fixed - us) / us for at, us in zip(xs, ys, strict=True)]
    reached = fmean(off) <= near
    return {
        "kind": "fit", "line": line, "nodes": max(point["nodes"] for point in points), "spec": "", "printed": printed,
        "printed_errors": errors, "slope": slope, "fixed_us": fixed, "mean_error": fmean(off), "max_error": max(off),
        "verdict": "match" if reached else "not reached", "reason": None if reached else _FIGURE_14_BUSY,
        "holds": fmean(off) <= far,
    }  # fmt: skip


def _points(nodes: int) -> list[Row]:
    """Return a row with live times for each bandwidth-optimal contender. `factor_us` is T_B at the full link rate."""
    rivals = [rival for rival in contenders(nodes) if rival.name != TREES]
    times = measure_contenders(rivals, FIGURE_14_SIZES_BYTES, _FIGURE_14_REPEATS)
    rows: list[Row] = []
    for rival in rivals:
        cost = rival.verified().cost
        factor = cost.time_per_byte * LINKS_OF_A_NODE
        rows.append({
            "kind": "point", "nodes": nodes, "spec": rival.spec, "network": rival.name, "steps": cost.steps,
            "bandwidth_factor": str(factor), "factor_us": float(factor * FIGURE_14_SIZES_BYTES[1] * 8 / _NODE_MBPS),
            "small_us": times[rival.name].us[0], "large_us": times[rival.name].us[1],
            "ran_on": times[rival.name].where, "reason": times[rival.name].substitution, "holds": True,
        })  # fmt: skip
    return rows


def _fitted(row: Row) -> str:
    if row["line"] == "T_L":
        return f"{row['slope']:.4g} us a step + {row['fixed_us']:.4g} us"
    return f"{_NODE_MBPS / row['slope']:.4g} of {_NODE_MBPS} Mbit/s"


FIGURE_14 = Experiment(
    name="direct-connect-figure-14",
    question="Is the time of an allreduce a straight line in the steps, and in the bandwidth factor?",
    source=f"{DIRECT_CONNECT}, figure 14; live on emulated links of {LINK_MBPS} Mbit/s instead of 25 Gbit/s",
    columns=columns(
        "nodes | spec | network | T_L=steps | T_B (M/B)=bandwidth_factor | 1 KiB, us=small_us:.4g",
        "2 MiB, us=large_us:.5g | printed",
        Column("fitted", lambda row: _fitted(row) if "slope" in row else ""),
        Column("mean and largest error", lambda row: f"{row['mean_error']:.1%}, {row['max_error']:.1%}"
               if "slope" in row else ""), "reason"),
    cases=FIGURE_14_NODES,
    quick=_FIGURE_14_QUICK_NODES,
    evaluate=_points,
    conclude=lambda parts: [*(points := concatenate_rows(parts)), *(_line_row(points, *line) for line in _LINES)],
    alone=True,
    plot=Chart(all_points(line_points("1 KiB against steps", "{network}", "steps", "small_us"),
                          line_points("2 MiB against T_B in us", "{network}", "factor_us", "large_us")),
               "", "us", log="", dots=True),
)  # fmt: skip


TORI = ("torus:3x3x2", "torus:3x3x3", "torus:3x3x3x2")
LARGE_BYTES = 100 * 10**6
_PRINTED_GAIN = {"torus:3x3x2": 0.29, "torus:3x3x3": 0.0, "torus:3x3x3x2": 0.42}
"""Network -> printed average gain of BFB in bandwidth at 100 MB and above. For the cube, the paper says "matches"."""
_GAIN_WITHIN, _LIVE_GAIN_WITHIN = 0.05, 0.15
_TORUS_MODEL = NetworkModel.of(10, 0, 0, 25)
LIVE_TORI = ("torus:2x2x2", "torus:4x2")
_TORUS_SIZES = {SIMULATED: tuple(2**10 * 4**power for power in range(11)), LIVE: (2**12, 2**16, 2**20)}
_FIGURE_11_REPEATS = 5
_FIGURE_11_BUSY = "the processes of all ranks share a few cores, which others may use too: links wait for them"
_BETWEEN = (
    "the first gain is of steps that end everywhere before the next begin, the other of ranks that wait only for what "
    "they need, so that links which are idle in one step begin the next; what was measured lies between them"
)


def _figure_11_rows(case: tuple[str, str]) -> list[Row]:
    """Return rows with the times at each size, then a row that compares the gain at large sizes.

    `case` says whether times are simulated or measured live. Simulated gains are compared with the paper's, and live
    gains with a model without barriers between steps.
    """
    where, spec = case
    bfb, traditional = Contender("bfb", spec, "bfb"), Contender("traditional", spec, "traditional-torus")
    made = {rival.name: rival.verified() for rival in (bfb, traditional)}
    sizes, nodes = _TORUS_SIZES[where], parse_topology(spec).compute_count
    facts: dict[str, Any] = {"where": where, "nodes": nodes, "spec": spec, "reason": None, "holds": True}
    if where == SIMULATED:
        costs = {name: congestion_of(traffic_of(verified.schedule)) for name, verified in made.items()}
        times_us = [{n: float(cost.seconds(_TORUS_MODEL, size)) * 1e6 for n, cost in costs.items()} for size in sizes]
    else:
        times = measure_contenders((bfb, traditional), sizes, _FIGURE_11_REPEATS)
        facts |= {"where": times["bfb"].where, "reason": times["bfb"].substitution}
        times_us = [{name: time.us[place] for name, time in times.items()} for place in range(len(sizes))]
    rows: list[Row] = [{**facts, "size_bytes": size, "us": us} for size, us in zip(sizes, times_us, strict=True)]
    # Compute the gain at large sizes if there are no barriers: ranks only wait for the data that they need
    flow = NetworkModel.of(link_gbps=25)
    seconds = {
        rival.name: simulate_program(rival.program(None), made["bfb"].schedule.topology, flow, LARGE_BYTES, None).end_s
        for rival in (bfb, traditional)
    }
    flowing = seconds["traditional"] / seconds["bfb"] - 1
    found = facts | {"size_bytes": None, "flowing_gain": flowing}
    if where == LIVE:
        gain = _gain(rows[-1])
        reason = facts["reason"] if abs(gain - flowing) <= _LIVE_GAIN_WITHIN else _FIGURE_11_BUSY
        return [*rows, found | {"gain": gain, "reason": reason, "holds": gain > -_LIVE_GAIN_WITHIN}]
    gain, printed = mean(_gain(row) for row in rows if row["size_bytes"] >= LARGE_BYTES), _PRINTED_GAIN[spec]
    reached = min(gain, flowing) - _GAIN_WITHIN <= printed <= max(gain, flowing) + _GAIN_WITHIN
    found |= {"printed_gain": printed, "gain": gain, "verdict": "match" if reached else "not reached", "holds": reached}
    return [*rows, found | {"reason": _BETWEEN if gain > flowing + _GAIN_WITHIN else None}]


def _gain(row: Row) -> float:
    return float(row["us"]["traditional"] / row["us"]["bfb"] - 1)


EXPERIMENT = Experiment(
    name="direct-connect-figure-11",
    question="How much faster is BFB than the traditional schedule on small tori, even and uneven?",
    source=f"{DIRECT_CONNECT}, figure 11; "
    f"18 to 54 nodes simulated, 8 nodes live on emulated links of {LINK_MBPS} Mbit/s",
    columns=columns(
        "where | nodes | spec",
        Column("size", lambda row: format_size(row["size_bytes"]) if row["size_bytes"] else "large"),
        "printed gain=printed_gain:+.0%",
        Column("our gain", lambda row: f"{row['gain'] if 'gain' in row else _gain(row):+.0%}"),
        "without ends of steps=flowing_gain:+.0% | reason",
    ),
    cases=[*((SIMULATED, spec) for spec in TORI), *((LIVE, spec) for spec in LIVE_TORI)],
    quick=[(SIMULATED, spec) for spec in TORI],
    evaluate=_figure_11_rows,
    alone=True,
    plot=Chart(line_points("{spec}", "", "size_bytes", "us"), SIZE, "allreduce in us"),
)
