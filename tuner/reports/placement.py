"""Reports of `chorale topology placement`: bounds of a collective on several sets of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.synth.identity import rational_text
from chorale.tuner.reports.bound import BoundReport
from chorale.tuner.reports.lazy_rich import Table, ruled_table
from chorale.tuner.reports.quantities import algbw_text, decimal


@dataclass(frozen=True, slots=True)
class BoundOnNodes:
    """Nodes in the order of their ranks, and the bound of a collective on them."""

    name: str
    hosts: tuple[str, ...]
    report: BoundReport

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches between nodes, not those within them."""
        names = self.report.topology.node_ids[self.report.topology.compute_count :]
        return tuple(name for name in names if ":" not in name)


def placement_document(placements: Sequence[BoundOnNodes]) -> dict[str, Any]:
    """Return the JSON document; `ratio` is the time of the first over that of the last, per byte."""
    first = placements[0].report
    return {
        "collective": first.collective.name.value,
        "placements": [
            {
                "name": each.name,
                "hosts": list(each.hosts),
                "ranks": each.report.topology.compute_count,
                "switches": list(each.switches),
                "time_per_byte": rational_text(each.report.bound.value),
                "algbw": float(1 / each.report.bound.value),
                "certificate": dict(each.report.bound.to_json(each.report.topology)),
            }
            for each in placements
        ],
        "ratio": rational_text(_ratio(placements)),
    }


def placement_table(placements: Sequence[BoundOnNodes]) -> Table:
    """Return the table for people, whose last line compares."""
    collective = placements[0].report.collective
    table = ruled_table(
        "", "hosts", "ranks", "switches", "algbw", title=f"bounds of {collective}", title_justify="left"
    )
    for each in placements:
        topology = each.report.topology
        algbw = f"at most {algbw_text(each.report.bound.value, topology.bandwidth_unit)}"
        table.add_row(each.name, ",".join(each.hosts), str(topology.compute_count), ",".join(each.switches), algbw)
    table.caption = _comparison(placements)
    table.caption_justify = "left"
    return table


def _comparison(placements: Sequence[BoundOnNodes]) -> str:
    ratio, (got, preferred) = _ratio(placements), (placements[0].name, placements[-1].name)
    if ratio == 1:
        return f"both bounds are the same: the switches do not tell {got} from {preferred}"
    if ratio > 1:
        return f"{preferred}: {decimal(ratio)}× the bandwidth of {got}"
    return f"{got}: {decimal(1 / ratio)}× the bandwidth of {preferred}"


def _ratio(placements: Sequence[BoundOnNodes]) -> Fraction:
    return placements[0].report.bound.value / placements[-1].report.bound.value
