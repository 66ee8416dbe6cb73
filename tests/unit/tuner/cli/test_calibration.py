"""`chorale run --calibrate`, and `chorale simulate --calibration` with what it printed."""

import json

import pytest

from chorale.runners.simulated.calibration import Calibration
from tests.command import chorale


@pytest.fixture
def schedule(capsys, tmp_path):
    path = tmp_path / "ring.parquet"
    chorale(capsys, "synth", "bfb", "ring:4", "--collective", "allreduce", "-o", path)
    return path


def test_a_fit_is_printed_and_used(capsys, schedule, tmp_path):
    arguments = ("--runner", "simulated", "--link-mbps", 100, "--sizes", "16K,1M")
    shown = " ".join(chorale(capsys, "run", schedule, *arguments, "--calibrate").stdout.split())
    assert "a link carries" in shown
    assert "0.1 Gbit/s" in shown
    assert "calibration" not in chorale(capsys, "run", schedule, *arguments, "--json").document
    done = chorale(capsys, "run", schedule, *arguments, "--calibrate", "--json")
    assert done.code == 0
    fit = done.document["calibration"]
    assert fit["unit_bytes_per_s"] == pytest.approx(100e6 / 8)
    assert fit["mean_error"] < 1e-9
    assert [row["size_bytes"] for row in done.document["results"]] == [2**14, 2**20]
    path = tmp_path / "fit.json"
    path.write_text(done.stdout)
    simulated = chorale(capsys, "simulate", schedule, "--sizes", "16K,1M", "--calibration", path, "--json").document
    assert simulated["parameters"]["calibration"] == str(path)
    for row, run in zip(simulated["results"], done.document["results"], strict=True):
        assert row["time_us"] == pytest.approx(run["time_us_median"])


def test_topologies_are_found_for_a_calibrated_machine(capsys, tmp_path):
    fit = Calibration("link", 0.0, 10e-6, 0.0, 25e9 / 8, 0.0, 0.0, None, 9)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"calibration": fit.to_json()}))
    wanted = ("find", "-n", 8, "-d", 4, "--bases", "paper", "--size", "1M", "--json")
    fitted = chorale(capsys, *wanted, "--calibration", path).document
    given = chorale(capsys, *wanted, "--alpha-us", 10, "--bandwidth-gbps", 100).document
    assert fitted["frontier"] == given["frontier"]
    assert fitted["best"] == given["best"]
