"""Times of Swing and of its rivals on one network by size, and claims of the Swing paper as assertions on ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, Literal, TypeAlias

from chorale.experiments.framework.experiment import Row, finding_row
from chorale.synth.collective import ALLREDUCE
from chorale.synth.methods.closed_forms import ALGORITHMS
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.congestion import Congestion, congestion_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.simulation.simulate import simulate
from chorale.synth.topology.spec import parse_topology

SIZES = tuple(32 * 4**power for power in range(14))
"""32 B to 2 GiB, the sizes of the paper's figures."""
SWING, DOUBLING, BUCKET, RING, MIRRORED = "Swing", "recursive doubling", "bucket", "ring", "mirrored doubling"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    SWING: ("swing-latency", "swing"),
    DOUBLING: ("recursive-doubling", "rabenseifner"),
    BUCKET: ("bucket",),
    RING: ("hamiltonian-ring",),
    MIRRORED: ("mirrored-recursive-doubling", "mirrored-rabenseifner"),
}
"""The methods of each line of a figure: of latency- and bandwidth-optimal variants the faster one counts."""
RIVALS = (DOUBLING, BUCKET, RING)
"""What gains are over: the best of these. The mirrored variant is the paper's own and does not count (section 5.1)."""


@dataclass(frozen=True, slots=True)
class NetworkScene:
    """A network, and the rate of its links in Gbit/s."""

    spec: str
    link_gbps: int = 400

    def __str__(self) -> str:
        return f"{self.spec}, {self.link_gbps} Gbit/s"

    def model(self, overhead_us: Fraction) -> NetworkModel:
        """Return section 5's 100 ns a link and 300 ns a hop; `overhead_us` is paid before every message."""
        return NetworkModel.of(str(overhead_us), "0.1", "0.3", self.link_gbps)


@dataclass(frozen=True, slots=True)
class Curves:
    """Seconds of an allreduce in a scene: `seconds[algorithm][size]`, and which variant it was.

    nodes, dimensions: of the grid, which decides the peak goodput
    """

    scene: NetworkScene
    nodes: int
    dimensions: int
    seconds: Mapping[str, Mapping[int, float]]
    variants: Mapping[str, Mapping[int, str]]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": _listed(self.seconds), "variants": _listed(self.variants)}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Curves:
        """Return the curves that `as_json` wrote."""
        tables = {key: {name: dict(pairs) for name, pairs in document[key].items()} for key in ("seconds", "variants")}
        return cls(NetworkScene(**document["scene"]), document["nodes"], document["dimensions"], **tables)

    def best_rival(self, size_bytes: int) -> str:
        """Return the fastest of `RIVALS` at this size."""
        return min((name for name in RIVALS if name in self.seconds), key=lambda name: self.seconds[name][size_bytes])

    def gain(self, size_bytes: int) -> float:
        """Return by which part Swing's goodput is above that of the best rival: 1 is twice as fast."""
        return self.ratio(self.best_rival(size_bytes), size_bytes) - 1

    def ratio(self, algorithm: str, size_bytes: int) -> float:
        """Return the time of `algorithm` over that of Swing."""
        return self.seconds[algorithm][size_bytes] / self.seconds[SWING][size_bytes]

    def goodput_gbps(self, algorithm: str, size_bytes: int) -> float:
        return size_bytes * 8 / self.seconds[algorithm][size_bytes] / 1e9

    def peak_share(self, algorithm: str, size_bytes: int) -> float:
        """Return the goodput over the peak, which is half of what 2 D ports inject (section 5)."""
        return self.goodput_gbps(algorithm, size_bytes) / (self.dimensions * self.scene.link_gbps)


def _listed(tables: Mapping[str, Mapping[int, Any]]) -> dict[str, list[tuple[int, Any]]]:
    """Return pairs instead of mappings by sizes, since keys of JSON are texts."""
    return {name: list(table.items()) for name, table in tables.items()}


def curves_of(scene: NetworkScene, overhead_us: Fraction, algorithms: Sequence[str]) -> Curves:
    """Return the times of `algorithms` by the congestion model; a ring only where there is one, on two dimensions."""
    topology = parse_topology(scene.spec)
    dimensions = len(grid_shape(topology))
    model = scene.model(overhead_us)
    seconds: dict[str, dict[int, float]] = {}
    variants: dict[str, dict[int, str]] = {}
    for algorithm in algorithms:
        if algorithm == RING and dimensions != 2:
            continue
        costs = {method: _congestion(scene.spec, method) for method in VARIANTS[algorithm]}
        seconds[algorithm], variants[algorithm] = {}, {}
        for size_bytes in SIZES:
            times = {method: float(cost.seconds(model, size_bytes)) for method, cost in costs.items()}
            fastest = min(times, key=times.__getitem__)
            seconds[algorithm][size_bytes], variants[algorithm][size_bytes] = times[fastest], fastest
    return Curves(scene, topology.compute_count, dimensions, seconds, variants)


@cache
def flow_seconds(scene: NetworkScene, method: str, size_bytes: int) -> float:
    """Return the seconds by the flow model: no barriers between steps, links shared max-min fairly."""
    (seconds,) = simulate(_traffic(scene.spec, method), scene.model(Fraction(0)), [size_bytes], "flow")
    return seconds


@cache
def _congestion(spec: str, method: str) -> Congestion:
    return congestion_of(_traffic(spec, method))


def _traffic(spec: str, method: str) -> Traffic:
    return ALGORITHMS[method].pattern(parse_topology(spec), ALLREDUCE).traffic()


ClaimVerdict = Literal["reproduced", "with overhead", "not reproduced"]
Measure: TypeAlias = Callable[[Sequence[Curves]], float]

OVERHEAD_US = Fraction(3, 4)
"""What a message costs before it starts, which the paper does not state. Fitted to one finding, the gain of 120 %
at 2 MiB on 64x64; what it says about all the others is a prediction."""

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class RangeClaim:
    """What the paper says, and how to see it in our curves.

    measure:  of the figure's curves, in their order; the finding is reproduced if it is from `low` to `high`
    expected: what came out when this was written; a row holds as long as that stays so
    reason:   why it is not reproduced with the constants that the paper states
    """

    claim: str
    section: str
    measure: Measure
    low: float = -inf
    high: float = inf
    expected: ClaimVerdict = "reproduced"
    reason: str | None = None

    def row(self, plain: Sequence[Curves], with_overhead: Sequence[Curves]) -> Row:
        """Return the row of this finding: measured with the stated constants, and with `OVERHEAD_US` besides."""
        value, overhead_value = self.measure(plain), self.measure(with_overhead)
        verdict = self._verdict(value, overhead_value)
        return finding_row(
            self.claim,
            nodes=max(curves.nodes for curves in plain),
            spec=", ".join(dict.fromkeys(curves.scene.spec for curves in plain)),
            value=value,
            verdict=verdict,
            reason=self.reason,
            holds=verdict == self.expected,
            place=self.section,
            range=[None if bound in (inf, -inf) else bound for bound in (self.low, self.high)],
            value_with_overhead=overhead_value,
            overhead_us=float(OVERHEAD_US),
        )

    def _verdict(self, value: float, overhead_value: float) -> ClaimVerdict:
        if self.low <= value <= self.high:
            return "reproduced"
        return "with overhead" if self.low <= overhead_value <= self.high else "not reproduced"


def min_gain(first: int = SIZES[0], last: int = SIZES[-1], of: int | None = None) -> Measure:
    """Return the smallest gain from size `first` to `last`, over all curves or those at index `of`."""
    return lambda all_curves: min(c.gain(size) for c in _chosen(all_curves, of) for size in _between(first, last))


def max_gain(first: int = SIZES[0], last: int = SIZES[-1], of: int | None = None) -> Measure:
    """Return the largest gain from size `first` to `last`, over all curves or those at index `of`."""
    return lambda all_curves: max(c.gain(size) for c in _chosen(all_curves, of) for size in _between(first, last))


def median_gain(curves: Curves) -> float:
    """Return the median gain up to 512 MiB, which is where figure 16 ends."""
    return median(curves.gain(size) for size in _between(SIZES[0], 512 * MIB))


def ratio_to_swing(algorithm: str, size_bytes: int, of: int = 0) -> Measure:
    """Return the time of `algorithm` over that of Swing at one size."""
    return lambda all_curves: all_curves[of].ratio(algorithm, size_bytes)


def min_ratio(algorithm: str, first: int = SIZES[0], last: int = SIZES[-1]) -> Measure:
    """Return the smallest time of `algorithm` over that of Swing, sizes `first` to `last`, all curves."""
    return lambda all_curves: min(c.ratio(algorithm, size) for c in all_curves for size in _between(first, last))


def max_bucket_ratio(first: int, last: int) -> Measure:
    """Return the largest time of bucket over that of Swing, sizes `first` to `last`, all curves."""
    return lambda all_curves: max(c.ratio(BUCKET, size) for c in all_curves for size in _between(first, last))


def min_rise(of_one: Callable[[Curves], float]) -> Measure:
    """Return the smallest difference between neighbouring curves: positive if `of_one` rises from each to the next."""
    return lambda all_curves: min(of_one(after) - of_one(before) for before, after in pairwise(all_curves))


def _chosen(all_curves: Sequence[Curves], of: int | None) -> Sequence[Curves]:
    return all_curves if of is None else [all_curves[of]]


def _between(first: int, last: int) -> list[int]:
    return [size for size in SIZES if first <= size <= last]
