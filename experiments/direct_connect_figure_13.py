"""Figure 13: BFB on hypercubes, plain and twisted, against what switched networks use; by the fit, and live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.testbed import LINK_MBPS, TREE_CHUNKS, Contender
from chorale.experiments.testbed_findings import (
    COLUMNS,
    LIVE,
    SHARED_CORES,
    SIMULATED,
    SpeedupClaim,
    live_rows,
    simulated_rows,
    with_claims,
)

FIGURE_13_NODES = 8
_NETWORKS = {"hypercube": "hypercube:3", "twisted": "twisted-hypercube:3"}
_BFB, _HALVING, _RING, _TREES = "BFB", "halving and doubling", "one ring", "double binary tree"
"""NCCL is not here to run: one ring and double binary trees are its two algorithms."""
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


def _figure_13_cases(quick: bool) -> Sequence[str]:
    return [SIMULATED] if quick else [SIMULATED, LIVE]


def _figure_13_rows(where: str) -> list[Row]:
    return (
        simulated_rows(FIGURE_13_NODES, _FIGURE_13_RIVALS)
        if where == SIMULATED
        else live_rows(FIGURE_13_NODES, _FIGURE_13_RIVALS)
    )


def _plot_figure_13(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.line_panels import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["kind"] == "times":
            for rival in _FIGURE_13_RIVALS:
                scheme, network = rival.name.split(" on ")
                lines = panels.setdefault(f"{row['where']}, {network}", {})
                over = row["us"][rival.name] / row["us"][_BASELINE]
                lines.setdefault(scheme, []).append((row["size_bytes"], over))
    plot_panels(panels, "size of the vector in bytes", "time over the baseline's", path, "flat")


FIGURE_13 = Experiment(
    name="direct-connect-figure-13",
    question="How much faster is BFB on hypercubes of 8 nodes than what switched networks use?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 13; "
    f"simulated as appendix A.2 fits the testbed, live on emulated links of {LINK_MBPS} Mbit/s instead of 25 Gbit/s; "
    "NCCL by the two algorithms that it has, one ring and double binary trees",
    columns=COLUMNS,
    cases=_figure_13_cases,
    evaluate=_figure_13_rows,
    conclude=lambda parts: with_claims(_FIGURE_13_CLAIMS, parts),
    alone=True,
    plot=_plot_figure_13,
)
