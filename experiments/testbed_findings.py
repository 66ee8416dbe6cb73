"""Who is faster than whom on the testbed: times by its fit or live, and what the paper says in words about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from chorale.experiments.experiment import Column, Row, concatenate_rows
from chorale.experiments.testbed import LIVE_SIZES_BYTES, SIZES_BYTES, Contender, measure_contenders, min_us, model_us

SIMULATED, LIVE = "simulated", "live"
SHARED_CORES = (
    "the processes of all ranks share a few cores here, so that short vectors take as long as the cores need for the "
    "messages of all ranks together, and not as long as the steps of one"
)
_REPEATS = 4
_WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class SpeedupClaim:
    """At `size`, `better` takes by the part `printed` less time than `worse`, on average over `nodes`.

    reasons: by where, why that does not come out; without one it has to
    """

    size: str
    better: str
    worse: str
    nodes: tuple[int, ...]
    printed: float
    reasons: Mapping[str, str] = field(default_factory=dict)

    def row(self, where: str, times: Mapping[tuple[str, int, str], float]) -> Row:
        """Return it beside ours; `times` are microseconds by size, nodes and contender."""
        known = [n for n in self.nodes if (self.size, n, self.better) in times]
        value = fmean(1 - times[self.size, n, self.better] / times[self.size, n, self.worse] for n in known)
        reached = abs(value - self.printed) <= _WITHIN
        said = "as long as" if self.printed == 0 else f"{self.printed:.0%} less than"
        return {
            "kind": "finding", "where": where, "nodes": max(known), "spec": "", "size": self.size,
            "finding": f"{self.better} takes {said} {self.worse}", "at": known, "printed": self.printed,
            "value": value, "verdict": "match" if reached else "not reached",
            "reason": None if reached else self.reasons.get(where, "not explained"),
            "holds": reached or where in self.reasons,
        }  # fmt: skip


def simulated_rows(nodes: int, rivals: Sequence[Contender]) -> list[Row]:
    """Return a row for each size of the paper, with the times that the fit of the testbed gives."""
    made = {rival.name: rival.verified() for rival in rivals}
    return [
        _row(SIMULATED, nodes, size, {name: model_us(one, size_bytes) for name, one in made.items()})
        for size, size_bytes in SIZES_BYTES.items()
    ]


def live_rows(nodes: int, rivals: Sequence[Contender]) -> list[Row]:
    """Return a row for each size with the times of a live run."""
    times = measure_contenders(rivals, tuple(LIVE_SIZES_BYTES.values()), _REPEATS)
    facts = {
        "ran_on": {name: time.where for name, time in times.items()},
        "reason": next((time.substitution for time in times.values() if time.substitution), None),
    }
    return [
        _row(LIVE, nodes, size, {rival.name: min_us(times, rival, place) for rival in rivals}) | facts
        for place, size in enumerate(LIVE_SIZES_BYTES)
    ]


def with_claims(claims: Sequence[SpeedupClaim], parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts, then what the paper says beside what is simulated, and beside what is live."""
    rows = concatenate_rows(parts)
    return [*rows, *(found for where in (SIMULATED, LIVE) for found in _finding_rows(where, claims, rows))]


def _finding_rows(where: str, findings: Sequence[SpeedupClaim], rows: Sequence[Row]) -> list[Row]:
    of_place = [row for row in rows if row["where"] == where]
    times = {(row["size"], row["nodes"], name): us for row in of_place for name, us in row["us"].items()}
    return [finding.row(where, times) for finding in findings] if times else []


def _row(where: str, nodes: int, size: str, us: Mapping[str, float]) -> dict[str, object]:
    size_bytes = (SIZES_BYTES if where == SIMULATED else LIVE_SIZES_BYTES)[size]
    return {
        "kind": "times", "where": where, "nodes": nodes, "spec": "", "size": size, "size_bytes": size_bytes, "us": us,
        "reason": None, "holds": True,
    }  # fmt: skip


def times_text(row: Row) -> str:
    """Return the times of a row for people."""
    return ", ".join(f"{name} {us:.5g}" for name, us in row.get("us", {}).items())


COLUMNS = (
    Column("where", lambda row: str(row["where"])),
    Column("nodes", lambda row: str(row["nodes"])),
    Column("size", lambda row: str(row["size"])),
    Column("us", times_text),
    Column("finding", lambda row: row.get("finding", "")),
    Column("ours", lambda row: f"{row['value']:+.0%}" if "value" in row else ""),
    Column("reason", lambda row: row["reason"] or ""),
)
