"""Figure 6: allreduce on small networks of degree 4: by the fit of the paper's testbed, and live at reduced scale.

Figure 13: BFB on hypercubes, plain and twisted, against what switched networks use; by the fit, and live.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chorale.experiments.direct_connect.testbed import (
    COLUMNS,
    LINK_MBPS,
    LIVE,
    OURS,
    SHARED_CORES,
    SHIFTED_BFB_RING,
    SHIFTED_RING,
    SIMULATED,
    TREE_CHUNKS,
    TREES,
    Contender,
    SpeedupClaim,
    contenders,
    live_rows,
    simulated_rows,
    with_claims,
)
from chorale.experiments.framework.experiment import Experiment, Row
from chorale.runners.api.units import format_size

FIGURE_6_NODES = tuple(range(5, 13))
LIVE_NODES = (8, 12)
_LEVELS = "trees have 6 to 8 levels, each a step of 13.33 us here; the fit is of other schedules and may not be theirs"
_STREAMS = (
    "trees that stream without a gap carry half of the data on each link, both ways at once, and need only 8/7 of "
    "the least time for 8 nodes; the trees of the testbed took about twice as long, as ours do live"
)
_FIGURE_6_CLAIMS = (
    SpeedupClaim("1 KB", OURS, SHIFTED_RING, (12,), 0.75, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 KB", OURS, TREES, (8, 10, 12), 0.2, {SIMULATED: _LEVELS, LIVE: SHARED_CORES}),
    SpeedupClaim("1 KB", SHIFTED_BFB_RING, SHIFTED_RING, (12,), 0.4, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", OURS, SHIFTED_RING, (12,), 0.5, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", OURS, TREES, (8, 10, 12), 0.45, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 MB", SHIFTED_BFB_RING, SHIFTED_RING, (12,), 0.35, {LIVE: SHARED_CORES}),
    SpeedupClaim("1 GB", OURS, TREES, (8, 10, 12), 0.5, {SIMULATED: _STREAMS}),
    SpeedupClaim("1 GB", OURS, SHIFTED_RING, (8, 10, 12), 0.0),
)


def _figure_6_cases(quick: bool) -> Sequence[tuple[str, int]]:
    """Return where each number of nodes is tried, and how many they are."""
    return [(SIMULATED, nodes) for nodes in FIGURE_6_NODES] + ([] if quick else [(LIVE, nodes) for nodes in LIVE_NODES])


def _figure_6_rows(case: tuple[str, int]) -> list[Row]:
    where, nodes = case
    rows_of = simulated_rows if where == SIMULATED else live_rows
    return rows_of(nodes, contenders(nodes))


def _plot_figure_6(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["kind"] == "times":
            meant = "" if row["where"] == SIMULATED else f", by {format_size(row['size_bytes'])}"
            lines = panels.setdefault(f"{row['where']}, {row['size']}{meant}", {})
            for name, us in row["us"].items():
                lines.setdefault(name, []).append((row["nodes"], us))
    plot_panels(panels, "N", "allreduce in us", path, "lines")


FIGURE_6 = Experiment(
    name="direct-connect-figure-6",
    question="How much faster is allreduce on the best small networks of degree 4 than on rings and trees?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 6; "
    f"simulated as appendix A.2 fits the testbed, live on emulated links of {LINK_MBPS} Mbit/s instead of 25 Gbit/s",
    columns=COLUMNS,
    cases=_figure_6_cases,
    evaluate=_figure_6_rows,
    conclude=lambda parts: with_claims(_FIGURE_6_CLAIMS, parts),
    alone=True,
    plot=_plot_figure_6,
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
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

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
