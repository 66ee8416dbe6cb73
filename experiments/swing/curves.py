"""Computes times of Swing and rival algorithms by size, and checks the Swing paper's claims about these times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, Literal, TypeAlias

from chorale.experiments.framework.experiment import Row, claim_row
from chorale.synth.collective import ALLREDUCE
from chorale.synth.methods.closed_forms import ALGORITHMS
from chorale.synth.methods.grid.steps import grid_shape
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.simulate import Congestion, NetworkModel, congestion_of, simulate
from chorale.synth.topology.spec import parse_topology

SIZES = tuple(32 * 4**power for power in range(14))
"""The sizes in the paper's figures, 32 B to 2 GiB."""
SWING, DOUBLING, BUCKET, RING, MIRRORED = "Swing", "recursive doubling", "bucket", "ring", "mirrored doubling"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    SWING: ("swing-latency", "swing"),
    DOUBLING: ("recursive-doubling", "rabenseifner"),
    BUCKET: ("bucket",),
    RING: ("hamiltonian-ring",),
    MIRRORED: ("mirrored-recursive-doubling", "mirrored-rabenseifner"),
}
"""Line in a figure -> its methods. The line shows the faster of the latency-optimal and bandwidth-optimal variants."""
RIVALS = (DOUBLING, BUCKET, RING)
"""Swing's gains are relative to the fastest of these. Mirrored doubling does not count (section 5.1)."""


@dataclass(frozen=True, slots=True)
class NetworkScene:
    """A network on which algorithms are compared, and its link bandwidth in Gbit/s."""

    spec: str
    link_gbps: int = 400

    def __str__(self) -> str:
        return f"{self.spec}, {self.link_gbps} Gbit/s"

    def model(self, overhead_us: Fraction) -> NetworkModel:
        """Return the model of section 5: 100 ns per link, 300 ns per hop, and `overhead_us` before every message."""
        return NetworkModel.of(str(overhead_us), "0.1", "0.3", self.link_gbps)


@dataclass(frozen=True, slots=True)
class Curves:
    """Times of an allreduce on the network of a scene, indexed by algorithm and size in bytes.

    seconds:  time in seconds of the algorithm's fastest variant at this size
    variants: name of that variant
    nodes, dimensions: numbers of the grid's nodes and dimensions, which determine the peak goodput
    """

    scene: NetworkScene
    nodes: int
    dimensions: int
    seconds: Mapping[str, Mapping[int, float]]
    variants: Mapping[str, Mapping[int, str]]

    def as_json(self) -> dict[str, Any]:
        """Return the curves as JSON. Mappings by size become lists of pairs, because JSON keys are strings."""
        tables = {"seconds": self.seconds, "variants": self.variants}
        listed = {key: {name: list(of.items()) for name, of in table.items()} for key, table in tables.items()}
        return {**asdict(self), **listed}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Curves:
        tables = {key: {name: dict(pairs) for name, pairs in document[key].items()} for key in ("seconds", "variants")}
        return cls(NetworkScene(**document["scene"]), document["nodes"], document["dimensions"], **tables)

    def best_rival(self, size_bytes: int) -> str:
        return min((name for name in RIVALS if name in self.seconds), key=lambda name: self.seconds[name][size_bytes])

    def gain(self, size_bytes: int) -> float:
        """Return Swing's gain in goodput over its best rival, as a fraction: 1 means twice as fast."""
        return self.ratio(self.best_rival(size_bytes), size_bytes) - 1

    def ratio(self, algorithm: str, size_bytes: int) -> float:
        """Return the time of `algorithm` divided by Swing's time."""
        return self.seconds[algorithm][size_bytes] / self.seconds[SWING][size_bytes]

    def goodput_gbps(self, algorithm: str, size_bytes: int) -> float:
        return size_bytes * 8 / self.seconds[algorithm][size_bytes] / 1e9

    def peak_share(self, algorithm: str, size_bytes: int) -> float:
        """Return the goodput divided by its peak, which is half the bandwidth of all ports of a node (section 5)."""
        return self.goodput_gbps(algorithm, size_bytes) / (self.dimensions * self.scene.link_gbps)


def curves_of(scene: NetworkScene, overhead_us: Fraction, algorithms: Sequence[str]) -> Curves:
    """Predict the times of `algorithms` with the congestion model. The ring is left out except in two dimensions."""
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
    """Predict the time in seconds with the flow model: no barriers between steps, links shared max-min fairly."""
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
"""Overhead per message, which the paper does not state. It is fitted to one claim, the gain of 120 % at 2 MiB on
64x64; the values for all other claims are predictions."""

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class RangeClaim:
    """A claim from the paper, expressed as a range for a value that is computed from our curves.

    measure:  computes the value from the figure's curves, in order; the claim is reproduced if low <= value <= high
    expected: verdict of earlier runs; a row holds if its verdict is the same
    reason:   why the claim is not reproduced with the constants that the paper states
    """

    claim: str
    section: str
    measure: Measure
    low: float = -inf
    high: float = inf
    expected: ClaimVerdict = "reproduced"
    reason: str | None = None

    def row(self, plain: Sequence[Curves], with_overhead: Sequence[Curves]) -> Row:
        """Return this claim's row, with values for the constants that the paper states and with `OVERHEAD_US` added."""
        value, overhead_value = self.measure(plain), self.measure(with_overhead)
        verdict = "reproduced" if self.low <= value <= self.high else "not reproduced"
        if verdict == "not reproduced" and self.low <= overhead_value <= self.high:
            verdict = "with overhead"
        row = claim_row(
            self.claim,
            value,
            self.low,
            self.high,
            nodes=max(curves.nodes for curves in plain),
            spec=", ".join(dict.fromkeys(curves.scene.spec for curves in plain)),
            place=self.section,
            range=[None if bound in (inf, -inf) else bound for bound in (self.low, self.high)],
            value_with_overhead=overhead_value,
            overhead_us=float(OVERHEAD_US),
        )
        return {**row, "verdict": verdict, "reason": self.reason, "holds": verdict == self.expected}


def min_gain(first: int = SIZES[0], last: int = SIZES[-1], of: int | None = None) -> Measure:
    """Return a function that finds the smallest gain at sizes `first` to `last` on curve `of` (None: on all curves)."""
    return lambda curves: min(_values(curves, Curves.gain, first, last, of))


def max_gain(first: int = SIZES[0], last: int = SIZES[-1], of: int | None = None) -> Measure:
    """Return a function that finds the largest gain at sizes `first` to `last` on curve `of` (None: on all curves)."""
    return lambda curves: max(_values(curves, Curves.gain, first, last, of))


def min_ratio(algorithm: str, first: int = SIZES[0], last: int = SIZES[-1]) -> Measure:
    """Return a function that finds the smallest ratio of `algorithm`'s time to Swing's time at these sizes."""
    return lambda curves: min(_values(curves, partial(Curves.ratio, algorithm=algorithm), first, last))


def max_ratio(algorithm: str, first: int, last: int) -> Measure:
    """Return a function that finds the largest ratio of `algorithm`'s time to Swing's time at these sizes."""
    return lambda curves: max(_values(curves, partial(Curves.ratio, algorithm=algorithm), first, last))


def _values(
    all_curves: Sequence[Curves], value: Callable[..., float], first: int, last: int, of: int | None = None
) -> list[float]:
    chosen = all_curves if of is None else [all_curves[of]]
    return [value(curves, size_bytes=size) for curves in chosen for size in SIZES if first <= size <= last]


def median_gain(curves: Curves) -> float:
    """Return the median gain up to 512 MiB, where figure 16 ends."""
    return median(curves.gain(size) for size in SIZES if size <= 512 * MIB)


def min_rise(of_curves: Callable[[Curves], float]) -> Measure:
    """Return a function that finds the smallest increase of `of_curves` from one scene's curves to the next."""
    return lambda all_curves: min(of_curves(after) - of_curves(before) for before, after in pairwise(all_curves))
