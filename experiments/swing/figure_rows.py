"""From a figure of the Swing paper to rows: times in every scene, then what the paper found in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.swing.curves import (
    MIB,
    OVERHEAD_US,
    RIVALS,
    SIZES,
    SWING,
    Curves,
    NetworkScene,
    RangeClaim,
    curves_of,
)
from chorale.runners.api.units import format_size

SOURCE = "De Sensi et al., Swing, 2024, section 5; 400 Gbit/s, 100 ns a link and 300 ns a hop unless said"
_LARGEST_OF_SUMMARY = 512 * MIB


@dataclass(frozen=True, slots=True)
class SwingFigure:
    """A figure: the scenes whose curves it shows, and what the paper says about it.

    picture: "goodput": all algorithms, a panel per scene; "gain": Swing over its best rival, a line per scene;
             "summary": how gains spread over the sizes, a box per scene
    also:    algorithms besides Swing and its rivals
    """

    number: int
    question: str
    scenes: tuple[NetworkScene, ...]
    claims: tuple[RangeClaim, ...]
    picture: Literal["goodput", "gain", "summary"] = "goodput"
    also: tuple[str, ...] = ()

    def experiment(self) -> Experiment:
        """Return the experiment of this figure."""
        return Experiment(
            name=f"swing-figure-{self.number}",
            question=self.question,
            source=f"{SOURCE}; figure {self.number}",
            columns=_COLUMNS,
            cases=lambda _quick: self.scenes,
            evaluate=self._curves,
            conclude=self._rows,
            plot=self._plot,
        )

    def _curves(self, scene: NetworkScene) -> list[Any]:
        """Return the curves with the stated constants, and with overhead; the slowest scene takes ten seconds."""
        algorithms = (SWING, *RIVALS, *self.also)
        return [curves_of(scene, overhead_us, algorithms).as_json() for overhead_us in (Fraction(0), OVERHEAD_US)]

    def _rows(self, parts: Sequence[Any]) -> list[Row]:
        plain, with_overhead = ([Curves.of_json(part[place]) for part in parts] for place in (0, 1))
        of_scene = _summary_rows if self.picture == "summary" else _size_rows
        shown = [row for pair in zip(plain, with_overhead, strict=True) for row in of_scene(*pair)]
        return [*shown, *(finding.row(plain, with_overhead) for finding in self.claims)]

    def _plot(self, rows: Sequence[Row], path: Path) -> None:
        from chorale.experiments.swing.plots import plot_figure  # noqa: PLC0415 (matplotlib is slow)

        plot_figure(self.picture, [row for row in rows if row["kind"] != "finding"], path)


def _size_rows(plain: Curves, with_overhead: Curves) -> Iterator[Row]:
    for size_bytes in SIZES:
        yield {
            **_scene_facts("goodput", plain),
            "size_bytes": size_bytes,
            "us": {name: seconds[size_bytes] * 1e6 for name, seconds in plain.seconds.items()},
            "variant": {name: chosen[size_bytes] for name, chosen in plain.variants.items()},
            "goodput_gbit_per_s": {name: plain.goodput_gbps(name, size_bytes) for name in plain.seconds},
            "best_rival": plain.best_rival(size_bytes),
            "gain": plain.gain(size_bytes),
            "gain_with_overhead": with_overhead.gain(size_bytes),
        }


def _summary_rows(plain: Curves, with_overhead: Curves) -> Iterator[Row]:
    sizes = [size for size in SIZES if size <= _LARGEST_OF_SUMMARY]
    gains, overhead_gains = ([curves.gain(size) for size in sizes] for curves in (plain, with_overhead))
    yield {
        **_scene_facts("summary", plain),
        "gains": gains,
        "quartiles": quantiles(gains, method="inclusive"),
        "gains_with_overhead": overhead_gains,
        "quartiles_with_overhead": quantiles(overhead_gains, method="inclusive"),
    }


def _scene_facts(kind: str, curves: Curves) -> dict[str, Any]:
    scene = curves.scene
    facts = {"kind": kind, "nodes": curves.nodes, "spec": scene.spec, "link_gbps": scene.link_gbps}
    return {**facts, "reason": None, "holds": True}


def _size(row: Row) -> str:
    return format_size(row["size_bytes"]) if "size_bytes" in row else ""


def _times(row: Row) -> str:
    return "  ".join(f"{name} {us:.4g}" for name, us in row.get("us", {}).items())


def _gain(row: Row) -> str:
    if row["kind"] == "finding":
        return f"{row['value']:.3g}, {row['value_with_overhead']:.3g}"
    if row["kind"] == "goodput":
        return f"{row['gain']:+.1%}, {row['gain_with_overhead']:+.1%}"
    middle, most = row["quartiles"][1], max(row["gains"])
    overhead_middle, overhead_most = row["quartiles_with_overhead"][1], max(row["gains_with_overhead"])
    return f"median {middle:+.0%}, {overhead_middle:+.0%}; most {most:+.0%}, {overhead_most:+.0%}"


def _range(row: Row) -> str:
    if row["kind"] != "finding":
        return ""
    low, high = ("" if bound is None else f"{bound:g}" for bound in row["range"])
    return f"{low} … {high}"


_COLUMNS = (
    Column("spec", lambda row: str(row["spec"])),
    Column("Gbit/s", lambda row: str(row.get("link_gbps", ""))),
    Column("size", _size),
    Column("us", _times),
    Column(f"gain or value; with {float(OVERHEAD_US)} us a message", _gain),
    Column("range", _range),
    Column("finding", lambda row: f"{row['finding']} ({row['place']})" if row["kind"] == "finding" else ""),
    Column("verdict", lambda row: row.get("verdict", "")),
    Column("reason", lambda row: row["reason"] or ""),
)
