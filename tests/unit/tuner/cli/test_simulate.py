"""`chorale simulate`: what it prints and draws, and that it takes what `chorale run --calibrate` printed."""

import json

import pytest

from tests.command import chorale
from tests.links import topology_document

FLAT = topology_document("ab", [("a", "b", 2)])


def test_methods_and_files_as_json_and_plot(capsys, tmp_path):
    done = chorale(capsys, "simulate", "ring", "ring:8", "--sizes", "8000,1M", "--link-gbps", 10, "--json", code=0)
    document = done.document
    assert document["collective"] == "allreduce"
    assert document["topology"]["spec"] == "ring:8"
    assert document["seed"] is None
    assert document["parameters"]["hop_us"] == "0.3"
    assert document["parameters"]["model"] == "step"
    small, large = document["results"]
    assert list(small) == ["size_bytes", "time_us", "goodput_gbit_per_s"]
    assert small["time_us"] == pytest.approx(14 * (0.4 + 0.8))
    assert small["goodput_gbit_per_s"] == pytest.approx(8000 * 8 / 14 / 1.2 / 1000)
    assert large["size_bytes"] == 2**20
    path = tmp_path / "gather.json"
    made = chorale(capsys, "synth", "bfb", "ring:5", "--collective", "allgather", "-o", path, "--json").document
    document = chorale(capsys, "simulate", path, "--sizes", "1M", "--link-gbps", 100, "--json").document
    assert (document["collective"], document["method"]) == ("allgather", "bfb")
    assert document["schedule"]["id"] == made["schedule"]["id"]
    flow = chorale(capsys, "simulate", path, "--sizes", "1M", "--link-gbps", 100, "--model", "flow", "--json").document
    assert flow["parameters"]["model"] == "flow"
    arguments = ("--sizes", "1K:1G:x4", "--link-gbps", 400, "--plot", tmp_path / "a.svg", "--quiet")
    assert chorale(capsys, "simulate", "bfb", "torus:4x4", *arguments).code == 0
    assert b"goodput" in (tmp_path / "a.svg").read_bytes()


def test_auto_takes_the_fastest_method_and_closed_forms_need_no_schedule(capsys):
    sizes = ("--sizes", "4KiB,16MiB", "--link-gbps", 100, "--json")
    document = chorale(capsys, "simulate", "auto", "torus:4x4", *sizes).document
    assert (document["method"], document["chosen_by"]) == ("auto", "time")
    for index, row in enumerate(document["results"]):
        alone = [chorale(capsys, "simulate", name, "torus:4x4", *sizes) for name in ("bfb", "swing-latency", "biring")]
        assert row["time_us"] <= min(done.document["results"][index]["time_us"] for done in alone) * 1.0001
    assert len({row["method"] for row in document["results"]}) == 2
    arguments = ("simulate", "swing", "torus:64x64", "--sizes", "512M", "--link-gbps", 400, "--json")
    document = chorale(capsys, *arguments).document
    assert document["schedule"] == {"kind": "stepped", "steps": 24, "id": None}
    # 1.1846 of the optimum 2 (N - 1) / N over four links (table 2: 1.19), and 24 steps over up to 21 hops.
    bytes_us = 1.1846153846 * 2 * 4095 / 4096 * 2**29 / (4 * 50e3)
    assert document["results"][0]["time_us"] == pytest.approx(bytes_us + 67.2, rel=1e-3)


def test_bandwidths_of_the_topology_are_used_also_of_a_file_with_brackets(capsys, tmp_path):
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(FLAT))
    arguments = ("simulate", "ring", f"file:{path}", "--sizes", 8000, "--hop-us", 0, "--link-latency-us", 0, "--json")
    done = chorale(capsys, *arguments)
    assert done.document["results"][0]["time_us"] == pytest.approx(2 * 4000 / 2e9 * 1e6)
    ignored = chorale(capsys, *arguments, "--link-gbps", 1)
    assert ignored.document["results"] == done.document["results"]
    assert "--link-gbps is not used" in ignored.stderr
    file = tmp_path / "x[" / "b].json"
    file.parent.mkdir()
    file.write_text(json.dumps(FLAT))
    done = chorale(capsys, "simulate", "bfb", f"file:{file}", "--link-gbps", 100, code=0)
    assert f"not used: file:{file} has" in " ".join(done.stderr.split())


def test_a_fit_is_printed_and_used(capsys, schedule, tmp_path):
    ring = schedule("bfb", "ring:4")
    arguments = ("--runner", "simulated", "--link-mbps", 100, "--sizes", "16K,1M")
    shown = " ".join(chorale(capsys, "run", ring, *arguments, "--calibrate").stdout.split())
    assert "a link carries" in shown
    assert "0.1 Gbit/s" in shown
    assert "calibration" not in chorale(capsys, "run", ring, *arguments, "--json").document
    done = chorale(capsys, "run", ring, *arguments, "--calibrate", "--json", code=0)
    fit = done.document["calibration"]
    assert fit["unit_bytes_per_s"] == pytest.approx(100e6 / 8)
    assert fit["mean_error"] < 1e-9
    assert [row["size_bytes"] for row in done.document["results"]] == [2**14, 2**20]
    path = tmp_path / "fit.json"
    path.write_text(done.stdout)
    simulated = chorale(capsys, "simulate", ring, "--sizes", "16K,1M", "--calibration", path, "--json").document
    assert simulated["parameters"]["calibration"] == str(path)
    for row, run in zip(simulated["results"], done.document["results"], strict=True):
        assert row["time_us"] == pytest.approx(run["time_us_median"])
