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


def calibrated(capsys, schedule):
    arguments = ("--runner", "simulated", "--link-mbps", 100, "--sizes", "16K,1M", "--calibrate")
    return chorale(capsys, "run", schedule, *arguments, "--json")


def test_a_fit_is_printed_and_used(capsys, schedule, tmp_path):
    done = calibrated(capsys, schedule)
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


def test_for_people(capsys, schedule):
    arguments = ("--runner", "simulated", "--link-mbps", 100, "--sizes", "16K,1M", "--calibrate")
    done = chorale(capsys, "run", schedule, *arguments)
    assert done.code == 0
    assert "a link carries" in done.stdout
    assert "0.1 Gbit/s" in done.stdout


def test_without_calibrate_nothing_is_fitted(capsys, schedule):
    done = chorale(capsys, "run", schedule, "--runner", "simulated", "--link-mbps", 100, "--sizes", "1M", "--json")
    assert "calibration" not in done.document


def test_a_calibration_excludes_rates(capsys, schedule, tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(calibrated(capsys, schedule).stdout)
    for option in ("--alpha-us", "--link-gbps", "--hop-us"):
        done = chorale(capsys, "simulate", schedule, "--sizes", "1M", "--calibration", path, option, "1")
        assert done.code == 2
        assert f"got {option}; leave out one of the two" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a calibration file must be JSON"),
        ("[]", "a calibration must be JSON of the format"),
        ('{"runner": "local"}', "a calibration must be JSON of the format"),
    ],
)
def test_other_files_are_refused(capsys, schedule, tmp_path, content, message):
    path = tmp_path / "fit.json"
    path.write_text(content)
    done = chorale(capsys, "simulate", schedule, "--sizes", "1M", "--calibration", path)
    assert done.code == 2
    assert message in done.stderr


def test_topologies_are_found_for_a_calibrated_machine(capsys, tmp_path):
    fit = Calibration("link", 0.0, 10e-6, 0.0, 25e9 / 8, 0.0, 0.0, None, 9)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"calibration": fit.to_json()}))
    wanted = ("find", "-n", 8, "-d", 4, "--bases", "paper", "--size", "1M", "--json")
    fitted = chorale(capsys, *wanted, "--calibration", path).document
    given = chorale(capsys, *wanted, "--alpha-us", 10, "--bandwidth-gbps", 100).document
    assert fitted["frontier"] == given["frontier"]
    assert fitted["best"] == given["best"]


@pytest.mark.parametrize(
    ("unit", "arguments", "message"),
    [
        ("link", (), "got none of them; give --calibration and --size"),
        ("link", ("--size", "1M", "--alpha-us", 1), "got --alpha-us, --size; give --calibration and --size"),
        ("GB/s", ("--size", "1M"), "must come from a network of equal links; got one in GB/s"),
    ],
)
def test_find_refuses_what_does_not_fit_together(capsys, tmp_path, unit, arguments, message):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(Calibration(unit, 0.0, 1e-6, 0.0, 1e9, 0.0, 0.0, None, 9).to_json()))
    done = chorale(capsys, "find", "-n", 8, "-d", 4, "--calibration", path, *arguments)
    assert done.code == 2
    assert message in done.stderr
