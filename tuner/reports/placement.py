"""Reports of `chorale topology placement`: bounds of a collective on several sets of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorale.synth.identity import rational_text
from chorale.tuner.reports.bound import BoundReport
from chorale.tuner.reports.quantities import algbw_text, decimal
from chorale.tuner.reports.tables import Result, ruled_table


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


def placement_result(placements: Sequence[BoundOnNodes]) -> Result:
    """Return documents and rows; `ratio` is the time of the first over that of the last, per byte."""
    first, last = placements[0], placements[-1]
    collective, ratio = first.report.collective, first.report.bound.value / last.report.bound.value
    table = ruled_table(
        "", "hosts", "ranks", "switches", "algbw", title=f"bounds of {collective}", title_justify="left"
    )
    documents = []
    for each in placements:
        topology, bound = each.report.topology, each.report.bound
        documents.append(
            {
                "name": each.name,
                "hosts": list(each.hosts),
                "ranks": topology.compute_count,
                "switches": list(each.switches),
                "time_per_byte": rational_text(bound.value),
                "algbw": float(1 / bound.value),
                "certificate": dict(bound.to_json(topology)),
            }
        )
        algbw = f"at most {algbw_text(bound.value, topology.bandwidth_unit)}"
        table.add_row(each.name, ",".join(each.hosts), str(topology.compute_count), ",".join(each.switches), algbw)
    better, worse, times = (last, first, ratio) if ratio > 1 else (first, last, 1 / ratio)
    table.caption = f"{better.name}: {decimal(times)}× the bandwidth of {worse.name}"
    if ratio == 1:
        table.caption = f"both bounds are the same: the switches do not tell {first.name} from {last.name}"
    table.caption_justify = "left"
    document = {"collective": collective.name.value, "placements": documents, "ratio": rational_text(ratio)}
    return Result(document, table)
