"""`chorale synth --size`: latencies count, and exact times are told."""

import json
from fractions import Fraction

import pytest

from tests.command import chorale


@pytest.fixture
def network(tmp_path):
    """A ring of four in GB/s with one pair of slow links besides."""
    nodes = [{"id": str(node), "kind": "compute"} for node in range(4)]
    links = [
        {"src": str(node), "dst": str((node + 1) % 4), "bandwidth": 10, "latency_s": 1e-6, "bidirectional": True}
        for node in range(4)
    ]
    links.append({"src": "0", "dst": "1", "bandwidth": 10, "latency_s": 2e-5, "bidirectional": True})
    document = {"format": "chorale-topology/1", "name": "ring", "bandwidth_unit": "GB/s"}
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(document | {"nodes": nodes, "links": links}))
    return f"file:{path}"


def test_the_cost_at_a_size(capsys, network, tmp_path):
    output = tmp_path / "ring.parquet"
    options = ("--collective", "allgather", "--size", "4KiB", "--json", "-o", output)
    done = chorale(capsys, "synth", "bfb", network, *options)
    assert done.code == 0
    cost = done.document["cost"]
    assert done.document["parameters"] == {"chunks": None, "size_bytes": 4096}
    assert cost["size_bytes"] == 4096
    # 1024 B at 10 GB/s: neighbours whole, then the opposite shard in halves; the slow links are left alone.
    assert Fraction(cost["time_s"]) == Fraction(2, 10**6) + Fraction(3, 2) * Fraction(1024, 10**10)
    assert cost["divisible_time_s"] == cost["time_s"]
    read = chorale(capsys, "verify", output, "--json").document["cost"]
    assert (read["size_bytes"], read["time_s"]) == (4096, cost["time_s"])
    text = chorale(capsys, "synth", "bfb", network, "--size", "1MiB", "--collective", "allreduce").stdout
    assert "time for 1MiB" in text
    assert "divisible shards" in text
    ring = ("synth", "ring", network, "--collective", "allgather", "--size", "4000", "--json")
    cost = chorale(capsys, *ring).document["cost"]
    assert Fraction(cost["time_s"]) == 3 * (Fraction(1, 10**6) + Fraction(1000, 10**10))
    assert "divisible_time_s" not in cost


@pytest.mark.parametrize("size", ["many", -1, 2.5])
def test_a_file_with_an_absurd_size_is_refused(capsys, network, tmp_path, size):
    output = tmp_path / "ring.json"
    chorale(capsys, "synth", "bfb", network, "--size", "4KiB", "-o", output)
    document = json.loads(output.read_text())
    document["parameters"]["size_bytes"] = size
    output.write_text(json.dumps(document))
    done = chorale(capsys, "verify", output)
    assert done.code == 2
    assert "the schedule is for a size that is not a whole number of bytes" in done.stderr
