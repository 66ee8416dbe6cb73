"""Judges measured results: compares the time at each size with the proven bound and with the library's own model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from statistics import median
from typing import Any

from rich.table import Table

from chorale.runners.api.base import bus_factor
from chorale.runners.api.units import format_size
from chorale.runners.simulated.library_model import LibraryAlgorithm, baseline_label, library_algorithms, library_choice
from chorale.synth import InvalidInput, NetworkModel, Topology, parse_collective
from chorale.synth.bounds.lower_bound import bound_of_ranks, in_network_bound
from chorale.synth.bounds.optimum import Bound
from chorale.synth.identity import rational_text
from chorale.synth.topology.boxes import NETWORK_KINDS
from chorale.tuner.files.result_files import ResultRow, Results, parse_results
from chorale.tuner.reports.bound import assumption_facts, assumption_rows, checked, network_facts
from chorale.tuner.reports.tables import Columns, rows_table, seconds_text

GOOD, FAIR = 0.85, 0.65
"""A result is good (fair) if its rate is at least the fraction GOOD (FAIR) of the rate that the model predicts."""
_UNUSUAL = 1.3
"""A size is unusually slow if its ratio of measured to expected time exceeds both neighbours' ratios by this factor."""
_ABOVE = 1.005
_LATENCY_LENIENCE = 0.6
"""Factor for `GOOD` and `FAIR` at sizes limited by latency, because latencies vary more between hosts than rates."""
_REACHES = 0.75
"""If the model's best algorithm reaches this fraction of the bound, links limit the time; else the algorithm does."""
_RATIO_ERROR = 0.005
MAX_BYTES = 2**26
_LIMITS = {"link": "the links", "NIC": "the NICs", "latency": "latency", "algorithm": "the algorithm"}


@dataclass(frozen=True, slots=True)
class JudgedSize:
    """How the measured time at one size compares with the bound and the library's model.

    measured_us: measured time, in place or out of place, whichever is shorter
    bound_us:    lower bound on the time of any schedule, from bandwidth alone
    percent_of_bound: bound divided by measured time, in percent
    library_us:  time predicted by the library's own model; None if there is no model
    limited_by:  what limits the time: link, NIC, latency or algorithm
    note:        description of anything unusual, or ""
    """

    size_bytes: int
    measured_us: float
    bound_us: float
    percent_of_bound: float
    library_us: float | None
    limited_by: str
    note: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of `judge`: a verdict, and details for each size.

    verdict:  conclusion in one sentence
    library:  name and version of the measured library
    model:    library whose model gives the expected times; None if there is no model
    acting:   whether the bound assumes that switches reduce data
    is_right: whether no wrong elements were found at any size
    """

    verdict: str
    sizes: tuple[JudgedSize, ...]
    library: Mapping[str, str | None]
    model: str | None
    collective: str
    topology: Topology = field(repr=False)
    bound: Bound = field(repr=False)
    acting: bool
    is_right: bool

    def __repr__(self) -> str:
        return f"<Judgement: {self.verdict}>"

    def to_json(self) -> dict[str, Any]:
        bound = {
            "time_per_byte": rational_text(self.bound.value),
            "algbw": float(1 / self.bound.value),
            "kind": "in_network" if self.acting else "ranks",
        }
        return {
            "verdict": self.verdict,
            "sizes": [asdict(size) for size in self.sizes],
            "library": dict(self.library),
            "model": self.model,
            "collective": self.collective,
            "bound": bound,
            **network_facts(self.topology),
        }

    def table(self) -> Table:
        columns: Columns = {
            "size": lambda size: format_size(size.size_bytes),
            "measured": lambda size: seconds_text(size.measured_us / 1e6),
            "bound": lambda size: seconds_text(size.bound_us / 1e6),
            "of bound": lambda size: _percent(size.percent_of_bound),
            self.model or "model": lambda size: size.library_us and seconds_text(size.library_us / 1e6),
            "limit": lambda size: size.limited_by,
        }
        return rows_table(self.sizes, columns, f"{self.collective} on {self.topology.spec}", numbers=True)

    def notes(self) -> Iterator[str]:
        """Yield a line for each unusual size, and the assumptions on which the bound depends."""
        for size in self.sizes:
            if size.note:
                yield f"{format_size(size.size_bytes)}: {size.note}"
        for label, text in assumption_rows(assumption_facts(self.topology), "guess"):
            yield f"{label}: {text}"


def judge(
    content: bytes, name: str, topology: Topology, collective: str | None = None, link_gbps: str | None = None
) -> Judgement:
    """Compare measured times with the proven bound and with the library's own model.

    Args:
        content: Output of nccl-tests, rccl-tests, OSU or `chorale run --json`, in any of their formats.
        name: Name of the file with this content.
        topology: The network on which the results were measured.
        collective: The collective to judge, if the file has results of several or does not name it.
        link_gbps: Link rate in Gbit/s, for networks whose bandwidths are relative to a link's rate.

    Raises:
        InvalidInput: The file has no results, or they do not match the network.
    """
    wanted = None if collective is None else parse_collective(collective).name.value
    results = _chosen(parse_results(content, name), wanted, topology)
    if (fault := _rank_fault(results, topology, name)) is not None:
        rule = f"results must be of the {topology.compute_count} ranks of {topology.spec}"
        raise InvalidInput(rule, fault, "choose the network of the run")
    results = results.of_ranks(topology.compute_count)
    target = parse_collective(str(results.collective))
    if link_gbps is None and results.link_mbps is not None:
        link_gbps = str(Fraction(str(results.link_mbps)) / 1000)
    unit = NetworkModel.of(link_gbps=link_gbps).unit_bytes_per_s(topology)
    acting = in_network_bound(topology, target)
    bound = checked(topology, target, bound_of_ranks(topology, target) if acting is None else acting)
    is_gpu_library = results.library in ("NCCL", "RCCL")
    library, network = results.library if is_gpu_library or results.library == "MPI" else None, topology
    if topology.bandwidth_unit == "link":  # models have latencies, too
        rates = tuple(unit * width / 10**9 for width in topology.links.bandwidths)
        network = replace(topology, links=replace(topology.links, bandwidths=rates), bandwidth_unit="GB/s")
        library = "MPI"
    algorithms = library_algorithms(network, target, library)  # type: ignore[arg-type]  # as checked
    by_size: dict[int, list[ResultRow]] = {}
    for row in results.rows:
        by_size.setdefault(row.size_bytes, []).append(row)
    links = "NIC" if _crosses_nics(topology, bound) else "link"
    sizes = _with_unusual(
        [_judged(size, rows, float(bound.value / unit), algorithms, links) for size, rows in sorted(by_size.items())]
    )
    best = None if not algorithms else library_choice(algorithms, sizes[-1].size_bytes)
    version = results.version if is_gpu_library else None
    named = best.library if best and not is_gpu_library else results.library
    wrong = [row for row in results.rows if row.wrong]
    return Judgement(
        _verdict(sizes, best, target.name.value, topology, wrong),
        tuple(sizes),
        {"name": named, "version": version or (None if results.library == "MPI" or best is None else best.version)},
        None if best is None else f"{best.library} {best.version}",
        target.name.value,
        topology,
        bound,
        acting is not None,
        not wrong,
    )


def _chosen(found: Sequence[Results], collective: str | None, topology: Topology) -> Results:
    """Return the results of `collective` or, if it is None, of the only collective in the file.

    If there are several runs, one with the network's number of ranks is chosen.
    """
    if len(found) == 1 and found[0].collective is None and collective is not None:
        return replace(found[0], collective=collective)
    chosen = [each for each in found if collective is None or each.collective == collective]
    known = ", ".join(each.collective or "one that is not named" for each in found)
    if not chosen:
        raise InvalidInput(
            f"the file has no results of {collective}, only of {{}}", known, "choose one of them with --collective"
        )
    if len(chosen) > 1 and len({each.collective for each in chosen}) == 1:
        fitting = [each for each in chosen if _rank_fault(each, topology, "") is None]
        chosen = fitting[:1] if len({each.library for each in fitting}) == 1 else fitting or chosen[:1]
    if len(chosen) > 1 or chosen[0].collective is None:
        rule = "the results do not name one collective: {}"
        raise InvalidInput(rule, known, "add for example --collective allreduce")
    return chosen[0]


def _rank_fault(results: Results, topology: Topology, name: str) -> str | None:
    """Return why results are for another number of ranks than `topology` has, or None if the numbers are equal.

    The ratio busbw / algbw, which depends on the number of ranks, is trusted more than the list of devices.
    """
    ranks = topology.compute_count
    is_old = results.bus_ratio == 1 and bus_factor(str(results.collective), ranks) < 1  # as in nccl-tests up to 2.8
    if results.bus_ratio is not None and not is_old:
        if abs(results.bus_ratio - bus_factor(str(results.collective), ranks)) <= _RATIO_ERROR:
            return None
        return f"{name}, whose busbw is {results.bus_ratio:.3f} of its algbw"
    return None if results.ranks in (None, ranks) else f"{name} of {results.ranks} ranks"


def _judged(
    size_bytes: int,
    rows: Sequence[ResultRow],
    bound_s_per_byte: float,
    algorithms: Sequence[LibraryAlgorithm],
    links: str,
) -> JudgedSize:
    """Judge one size by the in-place or out-of-place time, whichever is shorter."""
    places = {place: [row.time_us for row in rows if row.in_place == place] for place in (False, True)}
    times = {place: median(found) for place, found in places.items() if found}
    place = min(times, key=times.__getitem__)
    measured_us, bound_us = times[place], bound_s_per_byte * size_bytes * 1e6
    best = library_choice(algorithms, size_bytes) if algorithms else None
    library_us = None if best is None else best.seconds(size_bytes) * 1e6
    notes = []
    if (wrong := sum(row.wrong or 0 for row in rows)) > 0:
        notes.append(f"{wrong} wrong elements")
    if len(times) == 2 and times[not place] > _UNUSUAL * times[place]:
        slower = "in place" if place is False else "out of place"
        notes.append(f"{slower} {times[not place] / times[place]:.1f} times as long")
    spread = max(max(found) / min(found) for found in places.values() if found)
    if spread > _UNUSUAL:
        notes.append(f"times vary, some runs take {spread:.1f} times as long as others")
    if bound_us > measured_us * _ABOVE:
        notes.append("faster than the bound")
    return JudgedSize(
        size_bytes,
        measured_us,
        bound_us,
        100 * bound_us / measured_us,
        library_us,
        _limit(size_bytes, measured_us, bound_us, best, links),
        "; ".join(notes),
    )


def _limit(size_bytes: int, measured_us: float, bound_us: float, best: LibraryAlgorithm | None, links: str) -> str:
    """Return what limits the time: latency (at least half of the time), the library's algorithm, or `links`."""
    if best is None or best.latency_s == 0:
        moving_us = bound_us if best is None else best.seconds(size_bytes) * 1e6
        if moving_us < measured_us / 2:
            return "latency"
    elif best.latency_s >= best.seconds(size_bytes) / 2:
        return "latency"
    if best is None or bound_us * 1e-6 * best.bytes_per_s / size_bytes >= _REACHES:
        return links
    return "algorithm"


def _with_unusual(sizes: Sequence[JudgedSize]) -> list[JudgedSize]:
    """Add a note to each size that takes longer than a larger size or, relative to expectation, than its neighbours."""
    beside = [size.measured_us / (size.library_us or max(size.bound_us, 1e-9)) for size in sizes]
    found = list(sizes)
    for index, size in enumerate(sizes):
        around = [beside[other] for other in (index - 1, index + 1) if 0 <= other < len(sizes)]
        usual = max(around, default=beside[index])
        larger = min((later.measured_us for later in sizes[index + 1 :]), default=size.measured_us)
        slower = ""
        if len(around) == 2 and beside[index] > _UNUSUAL * usual:
            slower = f"unusually slow: {beside[index] / usual:.1f} times the sizes around it"
        elif size.measured_us > 1.1 * larger:
            slower = f"unusually slow: a larger size takes only {seconds_text(larger / 1e6)}"
        if slower:
            found[index] = replace(size, note="; ".join(filter(None, (size.note, slower))))
    return found


def _verdict(
    sizes: Sequence[JudgedSize],
    best: LibraryAlgorithm | None,
    collective: str,
    topology: Topology,
    wrong: Sequence[ResultRow],
) -> str:
    """Return a sentence that compares the time at the largest size not limited by latency with the model or bound."""
    large = next((size for size in reversed(sizes) if size.limited_by != "latency"), sizes[-1])
    algbw = large.size_bytes / large.measured_us / 1e3
    at = f"{format_size(large.size_bytes)} at {algbw:.4g} GB/s"
    at += f" (busbw {algbw * bus_factor(collective, topology.compute_count):.4g})"
    if wrong:
        return f"wrong: {len(wrong)} of the measured times have wrong elements; {at}"
    if any(size.percent_of_bound > 100 * _ABOVE for size in sizes):
        most = max(size.percent_of_bound for size in sizes)
        return f"faster than {topology.spec} allows, up to {most:.0f} % of its bound: correct the topology; {at}"
    share, what = large.percent_of_bound / 100, "of the bound"
    if large.library_us is not None and best is not None:
        share, label = large.library_us / large.measured_us, baseline_label(best.document())
        what = f"of what {label} should reach, {_percent(large.percent_of_bound)} of the bound"
    lenient = _LATENCY_LENIENCE if large.limited_by == "latency" else 1.0
    word = "good" if share >= GOOD * lenient else "fair" if share >= FAIR * lenient else "slow"
    text = f"{word}: {at}, {_percent(100 * share)} {what}"
    slow = [format_size(size.size_bytes) for size in sizes if "unusually slow" in size.note]
    unusual = f"unusually slow: {', '.join(slow)}" if slow else "no size is unusually slow"
    return f"{text}, limited by {_LIMITS[large.limited_by]}; {unusual}"


def _percent(value: float) -> str:
    return f"{value:{'.2g' if value < 10 else '.0f'}} %"


def _crosses_nics(topology: Topology, bound: Bound) -> bool:
    """Return whether all links that cross the bound's cut are in the network between boxes."""
    nodes = bound.to_json(topology).get("nodes") or topology.node_ids[:1]
    inside = {topology.node_ids.index(str(node)) for node in nodes}
    links = topology.links
    crossing = [
        (src, dst)
        for src, dst in zip(links.src.tolist(), links.dst.tolist(), strict=True)
        if dst in inside and src not in inside
    ]
    return all(any(topology.node_ids[end].partition(":")[0] in NETWORK_KINDS for end in ends) for ends in crossing)
