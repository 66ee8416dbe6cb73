"""`chorale topology placement`, and `import` of Slurm's switches with the dump of a node."""

import json
from pathlib import Path

import pytest

from tests.command import chorale
from tests.dumps import nvswitch_machine

SWITCHES = "SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=spine Switches=leaf1,leaf2\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    (tmp_path / "switches.txt").write_text(SWITCHES)
    (tmp_path / "dump.xml").write_bytes(nvswitch_machine())


def test_both_bounds_are_printed_and_proved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--nic-gbps", "200", "--oversubscription", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    done = chorale(capsys, "topology", "placement", "switches.txt", *options, "--json")
    document = json.loads(done.stdout)
    got, preferred = document["placements"]
    assert (got["hosts"], got["switches"], got["algbw"]) == (["n1", "n2"], ["leaf1", "leaf2", "spine"], 12.5)
    assert (preferred["hosts"], preferred["switches"], preferred["algbw"]) == (["n1", "n3"], ["leaf1"], 25.0)
    assert document["ratio"] == "2"
    assert {each["certificate"]["kind"] for each in document["placements"]} == {"received"}
    done = chorale(capsys, "topology", "placement", "switches.txt", *options, "--preferred", "n4,n2")
    assert "at most 12.5 GB/s (25/2)" in done.stdout
    assert "preferred: 2× the bandwidth of nodes" in done.stdout
    done = chorale(capsys, "topology", "placement", "switches.txt", *options[:2])
    assert "both bounds are the same" in done.stdout


def test_ranks_are_gpus_with_a_dump(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--machine", "dump.xml", "--nodes", "n1,n2", "--nic-gbps", "160", "--oversubscription", "4")
    done = chorale(capsys, "topology", "placement", "switches.txt", *options, "--collective", "allgather", "--json")
    document = json.loads(done.stdout)
    assert [each["ranks"] for each in document["placements"]] == [8, 8]
    assert document["ratio"] == "4"
    done = chorale(capsys, "topology", "import", "switches.txt", *options, "-o", "cluster.json")
    assert (done.code, "hosts n1,n2" in done.stderr) == (0, True), done.stderr
    nodes = [node["id"] for node in json.loads(Path("cluster.json").read_text())["nodes"]]
    assert nodes[:8] == [f"{host}.{gpu}" for host in ("n1", "n2") for gpu in range(4)]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("placement switches.txt --nic-gbps 200", "there must be nodes to compare; got none, outside of a Slurm job"),
        ("placement switches.txt --nodes n1,n2", "Slurm does not know how fast nodes send; got no --nic-gbps"),
        ("placement switches.txt --nodes n1,n9 --nic-gbps 1", "nodes must hang on a switch of the file; got n9"),
        (
            "import switches.txt --machine switches.txt -o a.json",
            "--machine must be a dump of NCCL or RCCL, or a matrix of GPUs; got switches.txt",
        ),
        (
            "import switches.txt --nic-gbps 1 --oversubscription 1/2 -o a.json",
            "--oversubscription must be at least 1; got 1/2",
        ),
        (
            "import switches.txt --nic-gbps 1 --rails -o a.json",
            "--rails are for the dump of a machine; got switches.txt",
        ),
        (
            "import dump.xml --nodes n1 -o a.json",
            "--nodes need a fabric: an output of ibnetdiscover, or Slurm's switches; got dump.xml",
        ),
    ],
)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    done = chorale(capsys, "topology", *command.split())
    assert (done.code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
