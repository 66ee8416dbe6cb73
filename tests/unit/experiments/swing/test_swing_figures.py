"""Goodput of Swing and its rivals beside the findings of the Swing paper."""

from fractions import Fraction
from statistics import quantiles

import pytest

from chorale.experiments.framework.run import NAMES, load, run_experiment
from chorale.experiments.swing.curves import (
    BUCKET,
    MIB,
    OVERHEAD_US,
    RING,
    RIVALS,
    SIZES,
    SWING,
    NetworkScene,
    RangeClaim,
    curves_of,
    max_gain,
    median_gain,
    min_gain,
)

FAST = ("swing-figure-9", "swing-figure-12")
SLOW = [name for name in NAMES if name.startswith("swing-figure-") and name not in FAST]


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_findings_come_out_as_stated(name):
    rows = run_experiment(load(name), True).rows
    assert [row["finding"] for row in rows if not row["holds"]] == []
    findings = [row for row in rows if row["kind"] == "finding"]
    assert findings
    assert all(row["reason"] for row in findings if row["verdict"] != "reproduced")
    assert all(row["place"] for row in findings)


def test_curves_follow_closed_forms():
    """Bucket on n x n: 4 (n - 1) steps of one link, 2 (N - 1) / N of the vector over four ports."""
    scene = NetworkScene("torus:8x8")
    curves = curves_of(scene, Fraction(0), (SWING, *RIVALS))
    for size in SIZES:
        transfer_s = 2 * 63 / 64 * size * 8 / (4 * 400e9)
        assert curves.seconds[BUCKET][size] == pytest.approx(28 * 0.4e-6 + transfer_s)
        assert curves.seconds[RING][size] == pytest.approx(126 * 0.4e-6 + transfer_s)
        rivals = {name: curves.seconds[name][size] for name in RIVALS}
        assert curves.gain(size) == pytest.approx(min(rivals.values()) / curves.seconds[SWING][size] - 1)
        assert rivals[curves.best_rival(size)] == min(rivals.values())
    assert curves.variants[SWING][SIZES[0]] == "swing-latency"
    assert curves.variants[SWING][SIZES[-1]] == "swing"
    assert curves.peak_share(BUCKET, SIZES[-1]) == pytest.approx(64 / 63, rel=1e-3)


def test_verdicts_and_measures():
    curves = [
        curves_of(NetworkScene("torus:4x4"), overhead, (SWING, *RIVALS)) for overhead in (Fraction(0), OVERHEAD_US)
    ]
    size = 2 * MIB
    plain, slower = (each.gain(size) for each in curves)
    assert abs(plain - slower) > 1e-3
    for bounds, verdict in (
        ((plain - 1e-9, plain + 1e-9), "reproduced"),
        ((slower - 1e-9, slower + 1e-9), "with overhead"),
        ((9.0, 10.0), "not reproduced"),
    ):
        finding = RangeClaim("…", "5", lambda all_curves: all_curves[0].gain(size), *bounds, expected="reproduced")
        row = finding.row(curves[:1], curves[1:])
        assert (row["verdict"], row["holds"]) == (verdict, verdict == "reproduced")
    curves = [curves_of(NetworkScene(f"torus:{shape}"), Fraction(0), (SWING, *RIVALS)) for shape in ("4x4", "8x8")]
    gains = [[each.gain(size) for size in SIZES] for each in curves]
    assert max_gain()(curves) == max(map(max, gains))
    assert min_gain(of=0)(curves) == min(gains[0])
    assert max_gain(last=32, of=1)(curves) == gains[1][0]
    assert median_gain(curves[0]) == quantiles(gains[0][:-1], n=2)[0]
