"""Figure 11: BFB against the traditional schedule of a torus: 18, 27 and 54 nodes simulated, 8 nodes live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.live import measure_times
from chorale.runners.api.units import format_size
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.program_costs import simulate_program

TORI = ("torus:3x3x2", "torus:3x3x3", "torus:3x3x3x2")
LINK_GBPS, ALPHA_US = 25, 10
SIZES = tuple(2**10 * 4**power for power in range(11))
LARGE_BYTES = 100 * 10**6
_PRINTED_GAIN = {"torus:3x3x2": 0.29, "torus:3x3x3": 0.0, "torus:3x3x3x2": 0.42}
"""How much higher the paper measured BFB's bandwidth from 100 MB on, on average; "matches" on the cube."""
_WITHIN = 0.05
METHODS = {"bfb": "bfb", "traditional": "traditional-torus"}
_SIMULATED, _LIVE = "simulated", "live"
LIVE_TORI = ("torus:2x2x2", "torus:4x2")
LIVE_LINK_MBPS, LIVE_SIZES = 25, (2**12, 2**16, 2**20)
_REPEATS = 5
_LIVE_WITHIN = 0.15
_OPTIONS = LoweringOptions("oneccl-xml")
_BUSY = "the processes of all ranks share a few cores, which others may use too: links wait for them"
_BETWEEN = (
    "the first gain is of steps that end everywhere before the next begin, the other of ranks that wait only for what "
    "they need, so that links which are idle in one step begin the next; what was measured lies between them"
)


def _cases(quick: bool) -> Sequence[tuple[str, str]]:
    """Return where each torus is tried, and its spec."""
    return [(_SIMULATED, spec) for spec in TORI] + ([] if quick else [(_LIVE, spec) for spec in LIVE_TORI])


def _answer(case: tuple[str, str]) -> list[Row]:
    where, spec = case
    return _rows(spec) if where == _SIMULATED else _live_rows(spec)


def _rows(spec: str) -> list[Row]:
    topology = parse_topology(spec)
    model = NetworkModel.of(ALPHA_US, 0, 0, LINK_GBPS)
    made = _verified(spec)
    costs = {name: congestion_of(traffic_of(verified.schedule)) for name, verified in made.items()}
    rows: list[Row] = [
        {
            "where": _SIMULATED,
            "nodes": topology.compute_count,
            "spec": spec,
            "size_bytes": size,
            "us": {name: float(cost.seconds(model, size)) * 1e6 for name, cost in costs.items()},
            "reason": None,
            "holds": True,
        }
        for size in SIZES
    ]
    gain = mean(_gain(row) for row in rows if row["size_bytes"] >= LARGE_BYTES)
    return [*rows, _gain_row(spec, gain, _flowing_gain(made), _PRINTED_GAIN[spec])]


def _verified(spec: str) -> dict[str, VerifiedSchedule]:
    topology = parse_topology(spec)
    return {name: synthesize(method, topology, ALLREDUCE, None, SerialExecutor()) for name, method in METHODS.items()}


def _flowing_gain(made: Mapping[str, VerifiedSchedule]) -> float:
    """Return the gain at large sizes of programs whose ranks wait for what they need, not for the ends of steps."""
    model = NetworkModel.of(link_gbps=LINK_GBPS)
    times = {
        name: simulate_program(lower(one, _OPTIONS), one.schedule.topology, model, LARGE_BYTES, None).end_s
        for name, one in made.items()
    }
    return times["traditional"] / times["bfb"] - 1


def _gain_row(spec: str, stepped: float, flowing: float, printed: float) -> Row:
    """Return what the paper says about large sizes beside both models: what runs is something between them."""
    reached = min(stepped, flowing) - _WITHIN <= printed <= max(stepped, flowing) + _WITHIN
    return {
        "where": _SIMULATED, "nodes": parse_topology(spec).compute_count, "spec": spec, "size_bytes": None,
        "printed_gain": printed, "gain": stepped, "flowing_gain": flowing,
        "verdict": "match" if reached else "not reached", "reason": _BETWEEN if stepped > flowing + _WITHIN else None,
        "holds": reached,
    }  # fmt: skip


def _live_rows(spec: str) -> list[Row]:
    """Return times side by side on an emulated network, and at the largest size what both models say of them."""
    topology, made = parse_topology(spec), _verified(spec)
    programs = {name: lower(verified, _OPTIONS) for name, verified in made.items()}
    times = measure_times(topology, programs, LIVE_SIZES, LIVE_LINK_MBPS, _REPEATS)
    facts = {"where": times.where, "nodes": topology.compute_count, "spec": spec, "reason": times.substitution}
    rows: list[Row] = [
        {**facts, "size_bytes": size, "us": {name: times.min_us(name, place) for name in made}, "holds": True}
        for place, size in enumerate(LIVE_SIZES)
    ]
    gain, flowing = _gain(rows[-1]), _flowing_gain(made)
    reached = abs(gain - flowing) <= _LIVE_WITHIN
    found = {"size_bytes": None, "gain": gain, "flowing_gain": flowing, "holds": gain > -_LIVE_WITHIN}
    return [*rows, {**facts, **found, "reason": times.substitution if reached else _BUSY}]


def _gain(row: Row) -> float:
    times = row["us"]
    return float(times["traditional"] / times["bfb"] - 1)


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    timed = [row for row in rows if row["size_bytes"]]
    lines = {
        spec: {
            name: [
                (row["size_bytes"], row["size_bytes"] / row["us"][name] / 1e3) for row in timed if row["spec"] == spec
            ]
            for name in METHODS
        }
        for spec in dict.fromkeys(row["spec"] for row in timed)
    }
    plot_panels(lines, "size of the vector in bytes", "algbw in GB/s", path)


def _ours(row: Row) -> str:
    return f"{row['gain']:+.0%}" if "gain" in row else f"{_gain(row):+.0%}"


EXPERIMENT = Experiment(
    name="direct-connect-figure-11",
    question="How much faster is BFB than the traditional schedule on small tori, even and uneven?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 11; "
    f"18 to 54 nodes simulated, 8 nodes live on emulated links of {LIVE_LINK_MBPS} Mbit/s",
    columns=(
        Column("where", lambda row: str(row["where"])),
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("size", lambda row: format_size(row["size_bytes"]) if row["size_bytes"] else "large"),
        Column("printed gain", lambda row: f"{row['printed_gain']:+.0%}" if "printed_gain" in row else ""),
        Column("our gain", _ours),
        Column("without ends of steps", lambda row: f"{row['flowing_gain']:+.0%}" if "flowing_gain" in row else ""),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_answer,
    alone=True,
    plot=_plot,
)
