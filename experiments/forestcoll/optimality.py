"""ForestColl's exact optima of allgather, and its table 1: which generators take switches, are optimal, and scale.

The columns of the check marks of table 1 are lost in its text; they are taken from the words of section 2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.experiments.framework.comparison import Interval, PublishedRow, Quantity, columns_of, compare, short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row, columns
from chorale.experiments.framework.references import growth_exponent, min_seconds
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

_PUBLISHED_OPTIMA = (
    (32, "mi250:2", {"least_k": "83", "algbw": "354.13"}),
    (32, "mi250:2", {"k": "1", "algbw": "320.00"}),
    (32, "mi250:2", {"k": "2", "algbw": "341.33"}),
    (16, "mi250:1", {"least_k": "3", "algbw": "342.86"}),
    (16, "a100:2", {"least_k": "13", "algbw": "346.67"}),
    (16, "a100:2", {"k": "1", "algbw": "342.86"}),
    (32, "a100:4", {"least_k": "1", "algbw": "266.67"}),
)
"""Ranks, network, and what the public code answers: GB/s, by the least k that reaches the optimum or by a given k."""


_SLOW = "mi250:2"


_OPTIMA = [PublishedRow(spec, ranks, printed, spec, "forest") for ranks, spec, printed in _PUBLISHED_OPTIMA]


def _compare_optimum(row: PublishedRow) -> Row:
    """Compare the time of a verified schedule, which is also what a certified cut allows for that k."""
    topology = parse_topology(row.spec)
    quantities = []
    if "k" in row.printed:
        k = int(row.printed["k"])
        least_time = fixed_k_optimum(topology, ALLGATHER, k).time_per_byte
        quantities.append(Quantity("k", Interval.exactly(k)))
    else:
        k = optimum(topology, ALLGATHER).k
        least_time = lower_bound(topology, ALLGATHER).value
        quantities.append(Quantity("least_k", Interval.exactly(k)))
    verified = synthesize("forest", topology, ALLGATHER, Options(k=k), SerialExecutor())
    algbw = Interval.exactly(1 / verified.cost.time_per_byte)
    proof = "a cut proves that nothing is faster"
    quantities.append(Quantity("algbw", algbw, 1 / least_time, proof, smaller_is_better=False))
    return compare(row, quantities)


OPTIMA = Experiment(
    name="forestcoll-optima",
    question="Do trees reach the exact optima of ForestColl on its testbeds, with every number of trees?",
    source="Zhao et al., ForestColl, section 5 and its public code: allgather of 2 boxes of MI250 and of A100 GPUs",
    columns=columns_of({"least_k": "least k", "k": "given k", "algbw": "algbw, GB/s"}),
    cases=_OPTIMA,
    quick=[row for row in _OPTIMA if row.spec != _SLOW],
    evaluate=lambda row: [_compare_optimum(row)],
)


SWITCHED = "a100:2"
DIRECT = ("torus:4x4", "mi250:1", "without(torus:4x4;link=0-1)", "genkautz:4,20")
"""Networks without switches: symmetric ones, and others."""
GROWING, QUICK_GROWING = (32, 64, 128, 256), (16, 32, 64)
"""Ranks of generalized Kautz graphs of degree 4, which have no symmetry that shortens the work."""
MAX_EXPONENT = 4
"""A generator scales if its time grows with at most this power of the ranks."""
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Generator:
    """Our method that stands for a tool, and the collective that the paper uses the tool for."""

    method: str
    collective: Collective


_GENERATORS: Mapping[str, _Generator | None] = {
    "SCCL": None,
    "TACCL": None,
    "BFB": _Generator("bfb", ALLGATHER),
    "Blink": _Generator("blink", ALLREDUCE),
    "ForestColl": _Generator("forest", ALLGATHER),
}
_CHECKED: Mapping[str, tuple[str, ...]] = {
    "switches": ("TACCL", "ForestColl"),
    "optimal": ("SCCL", "ForestColl"),
    "scalable": ("BFB", "Blink", "ForestColl"),
}
"""The tools with a check mark, by property."""
_NOT_OURS = "neither theorem prover nor mixed integer programs are ours to run"
_WITH_SWITCHES = "ours takes switches out first, as the paper's Blink+Switch does"


def _asked(sizes: tuple[int, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return what is asked, of which tool, and the sizes at which growth is measured."""
    return [(asked, tool, sizes) for asked in _CHECKED for tool in _GENERATORS]


@dataclass(frozen=True, slots=True)
class _Assessment:
    """Whether a generator has a property, and the evidence."""

    has: bool
    evidence: str


def _rows(case: tuple[str, str, tuple[int, ...]]) -> list[Row]:
    asked, tool, sizes = case
    generator = _GENERATORS[tool]
    return [_row(tool, asked, None if generator is None else _assess(asked, generator, sizes))]


def _assess(asked: str, generator: _Generator, sizes: Sequence[int]) -> _Assessment:
    if asked == "switches":
        try:
            made = synthesize(generator.method, parse_topology(SWITCHED), generator.collective, None, SerialExecutor())
        except InvalidInput as refusal:
            return _Assessment(False, str(refusal))
        return _Assessment(True, f"verified on {SWITCHED}, {short_text(1 / made.cost.time_per_byte)} GB/s")
    return _is_optimal(generator) if asked == "optimal" else _scales(generator, sizes)


def _is_optimal(generator: _Generator) -> _Assessment:
    """Compare with the certified bound on several networks; the worst one counts."""
    worst, where = max((_over_bound(generator, spec), spec) for spec in DIRECT)
    return _Assessment(worst == 1, f"{short_text(worst)} times the bound" + ("" if worst == 1 else f" on {where}"))


def _over_bound(generator: _Generator, spec: str) -> Fraction:
    topology = parse_topology(spec)
    made = synthesize(generator.method, topology, generator.collective, None, SerialExecutor())
    return made.cost.time_per_byte / lower_bound(topology, generator.collective).value


def _scales(generator: _Generator, sizes: Sequence[int]) -> _Assessment:
    exponent = growth_exponent(sizes, [_seconds(generator, nodes) for nodes in sizes])
    return _Assessment(exponent <= MAX_EXPONENT, f"grows with power {exponent:.1f} of the ranks, to {sizes[-1]}")


def _seconds(generator: _Generator, nodes: int) -> float:
    topology = parse_topology(f"genkautz:4,{nodes}")

    def make() -> None:
        synthesize_unverified(generator.method, topology, generator.collective, None, SerialExecutor())

    make()  # compiled code is loaded once
    return min_seconds(make, _REPEATS, time.process_time)


def _row(tool: str, asked: str, answer: _Assessment | None) -> Row:
    printed = tool in _CHECKED[asked]
    verdict, reason = None, _NOT_OURS
    if answer is not None:
        verdict = "match" if answer.has == printed else "better" if answer.has else "not reached"
        reason = f"{_WITH_SWITCHES}; {answer.evidence}" if verdict == "better" else answer.evidence
    return {
        "tool": tool,
        "property": asked,
        "printed": printed,
        "ours": None if answer is None else answer.has,
        "verdict": verdict,
        "reason": reason,
        "holds": verdict != "not reached",
    }


def _mark(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


TABLE_1 = Experiment(
    name="forestcoll-table-1",
    question="Which generators of schedules take switches, reach the optimum, and scale?",
    source="Zhao et al., ForestColl, table 1 and section 2; tried on ours of each kind, SCCL and TACCL left out",
    columns=columns(
        "tool, property",
        Column("printed", lambda row: _mark(row["printed"])),
        Column("ours", lambda row: _mark(row["ours"])),
        "what was seen=reason",
    ),
    cases=_asked(GROWING),
    quick=_asked(QUICK_GROWING),
    evaluate=_rows,
    alone=True,
)
