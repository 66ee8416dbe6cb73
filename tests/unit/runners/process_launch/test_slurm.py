"""What is read from a job of Slurm, where ranks ran, and processes that are asked to end before they are killed."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from chorale.runners.api.registry import create_runner
from chorale.runners.mpi.launch import rank_hosts
from chorale.runners.process_launch.processes import STDOUT, LocalHost, ProcessSpec
from chorale.runners.process_launch.slurm import (
    HYDRA_SCRIPT,
    RankHost,
    SlurmAllocation,
    host_names,
    node_facts,
    placement_fault,
    require_one_process,
    seconds_left,
)
from chorale.synth.errors import InvalidInput
from tests.waiting import until


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the process into a job, with a folder of commands in place of Slurm's."""
    for name in ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _command(tmp_path / "scontrol", '[ "$3" = "n[1-3]" ] && printf "n1\\nn2\\nn3\\n"')
    return tmp_path


def _command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


@pytest.mark.parametrize(
    ("tasks", "ranks", "hosts"),
    [
        ("4(x3)", 8, (("n1", 4), ("n2", 4))),
        ("1(x3)", 8, (("n1", 3), ("n2", 3), ("n3", 2))),
        ("", 6, (("n1", 2), ("n2", 2), ("n3", 2))),
        ("2,1(x2)", 2, (("n1", 2),)),
    ],
)
def test_ranks_fill_the_nodes_of_a_job(
    job: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, ranks: int, hosts: tuple[tuple[str, int], ...]
) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    assert SlurmAllocation.current().hosts_of(ranks) == hosts


def test_hosts_of_an_mpi_job_are_of_the_allocation_or_left_to_the_launcher(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = rank_hosts("n3,n2", 4)
    assert (named.names, named.expected) == ("n3:2,n2:2", ("n3", "n3", "n2", "n2"))
    assert rank_hosts("n3:1,n2:3", 4).expected == ("n3", "n2", "n2", "n2")
    assert rank_hosts(None, 3).names == "n1,n2,n3"
    with pytest.raises(InvalidInput, match="must share the 5 ranks evenly"):
        rank_hosts("n3,n2", 5)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert rank_hosts("a,b", 4).expected == ()
    assert rank_hosts("a,b", 2).expected == ("a", "b")
    assert rank_hosts(None, 2).names is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30:00", 1800), ("2-01:00:00", 2 * 86400 + 3600), ("364-23:58:13", None), ("UNLIMITED", None), ("INVALID", None)],
)
def test_the_time_that_is_left(job: Path, text: str, seconds: float | None) -> None:
    _command(job / "squeue", f"echo {text}")
    assert seconds_left() == seconds


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_one_of_several_processes_is_refused(job: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    require_one_process()
    monkeypatch.setenv(variable, "8")
    refusal = f"this command starts the ranks itself, but it was started 8 times .{variable}"
    with pytest.raises(InvalidInput, match=refusal):
        require_one_process()
    for runner in ("local", "oneccl", "msccl"):
        with pytest.raises(InvalidInput, match=refusal):
            create_runner(runner, {})
    monkeypatch.setenv("RAY_RAYLET_PID", "7")  # a worker on a node of Ray that a step of eight tasks has started
    require_one_process()


def test_results_of_a_job_name_their_node(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert node_facts() == {"nodes": "n2"}
    monkeypatch.delenv("SLURM_JOB_ID")
    assert node_facts() == {}


NODES = [RankHost.of_words([f"n{number}", f"node{number}.example", f"10.0.0.{number}"]) for number in (3, 2)]
RANKS = {rank: NODES[rank // 2] for rank in range(4)}


@pytest.mark.parametrize(
    "hosts", [("n3", "n2"), ("10.0.0.3", "10.0.0.2"), ("node3", "node2.example"), (), ("127.0.0.1",) * 2]
)
def test_ranks_in_their_places(hosts: tuple[str, ...]) -> None:
    assert placement_fault(hosts, 2, RANKS) is None


def test_ranks_elsewhere_are_named() -> None:
    assert placement_fault(("n2", "n3"), 2, RANKS) == (
        "rank 0 ran on n3 instead of n2: the launcher chose other hosts or another order"
    )
    scattered = {0: RANKS[0], 1: RANKS[2]}
    assert "ranks 0 and 1 ran on n3 and n2" in str(placement_fault((), 2, scattered))
    assert (host_names(RANKS), host_names({})) == ("n3,n2", None)
    assert host_names({0: RANKS[0], 1: RANKS[2], 2: RANKS[0]}) == "n3,n2,n3"


def test_proxies_of_hydra_start_in_the_order_of_hosts(job: Path) -> None:
    _command(job / "srun", 'printf "%s|" "$@"')
    _command(job / "launcher", HYDRA_SCRIPT.partition("\n")[2])
    words = ["--nodelist", "n3,n2", "-N", "2", "-n", "2", "--input", "none", "/x/hydra_pmi_proxy", "--a b", "c"]
    done = subprocess.run([str(job / "launcher"), *words], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "--overlap|--mpi=none|--job-name=chorale|--distribution=arbitrary|--nodelist|n3,n2|-N|2|-n|2|--input|none|sh|-c|"
        'SLURM_NODEID=$SLURM_PROCID; export SLURM_NODEID; exec "$@"|sh|/x/hydra_pmi_proxy|--a b|c|'
    )


def test_a_process_with_others_to_end_is_asked_first_and_killed_if_it_ignores_that() -> None:
    script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    process = LocalHost().start(ProcessSpec(("sh", "-c", script), grace_s=10.0))
    until(lambda: process.read(STDOUT))
    began_s = time.monotonic()
    process.kill()
    assert time.monotonic() - began_s < 8
    assert process.read(STDOUT) == b"ready\nasked\n"
    process.close()
    stubborn = LocalHost().start(ProcessSpec(("sh", "-c", "trap '' TERM; echo ready; exec sleep 60"), grace_s=0.5))
    until(lambda: stubborn.read(STDOUT))
    stubborn.close()
    assert stubborn.poll() == -signal.SIGKILL
