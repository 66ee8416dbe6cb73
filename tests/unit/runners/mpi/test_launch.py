"""How MPI jobs are started: which MPI an mpiexec is of, commands of each kind of network, what stands in for ssh."""

import os
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.measurement.machine import Facts
from chorale.runners.mpi import launch
from chorale.runners.mpi.launch import ALLOCATIONS, SCRIPT, MpichLauncher, OpenMpiLauncher, mpi_launch_of, mpi_launcher
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology

RING = parse_topology("ring:4")


@dataclass(frozen=True)
class StandInFabric:
    """Has the part of a fabric that a launch needs; its nodes are variables of the environment."""

    name: str = "lab"
    ranks: int = 4
    link_mbps: Fraction = Fraction(50)

    def facts(self) -> Facts:
        return {"network": "fabric", "fabric": self.name, "link_mbps": float(self.link_mbps)}

    def address(self, rank: int) -> str:
        return f"10.99.0.{rank + 1}"

    def command_prefix(self, rank: int, from_inside: bool = False) -> tuple[str, ...]:
        return ("env", f"NODE=it's {rank}{' from inside' if from_inside else ''}")


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ALLOCATIONS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: "mpiexec")
    monkeypatch.setattr(launch, "mpi_launcher", lambda mpiexec: MpichLauncher("5.0.2"))
    monkeypatch.setattr(launch, "find_fabric", lambda topology_id, name: None)


@pytest.fixture
def _fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_fabric", lambda topology_id, name: StandInFabric())


@pytest.fixture
def _open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "mpi_launcher", lambda mpiexec: OpenMpiLauncher("5.0.11"))


def _until_ranks(argv: tuple[str, ...]) -> tuple[str, ...]:
    return argv[: argv.index("/bin/sh")]


@pytest.mark.usefixtures("_fabric")
@pytest.mark.parametrize("where", [None, "fabric", "loopback", "cluster"])
def test_one_of_several_processes_starts_no_ranks(monkeypatch: pytest.MonkeyPatch, where: str | None) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(InvalidInput, match="this command starts the ranks itself, but it was started 8 times"):
        mpi_launch_of(RING, where, None, None)


def test_loopback_needs_nothing() -> None:
    found = mpi_launch_of(RING, "loopback", None, None)
    assert _until_ranks(found.argv) == ("mpiexec", "-hosts", "localhost", "-n", "4")
    assert found.facts == {"network": "loopback"}
    assert found.is_here


def test_hosts_come_from_a_list_a_file_or_the_allocation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n# a comment\nb\n")
    for hosts in ("a,b", f"@{tmp_path}/hosts"):
        assert _until_ranks(mpi_launch_of(RING, None, None, hosts).argv) == ("mpiexec", "-hosts", "a,b", "-n", "4")
    monkeypatch.setenv("PBS_NODEFILE", "nodes")
    found = mpi_launch_of(RING, None, None, None)
    assert _until_ranks(found.argv) == ("mpiexec", "-n", "4")
    assert found.facts == {"network": "cluster"}
    assert not found.is_here


@pytest.mark.usefixtures("_open_mpi")
def test_open_mpi_gets_names_slots_and_variables(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a  # rank 0\n\nb:2\n")
    words = list(_until_ranks(mpi_launch_of(RING, None, None, f"@{hosts}").argv))
    assert words[words.index("--host") + 1] == "a,b:2"
    assert words[words.index("--map-by") + 1] == "slot:OVERSUBSCRIBE"
    assert words[words.index("-n") + 1] == "4"
    assert words[words.index("PYTHONPATH") - 1] == "-x"
    assert ("--allow-run-as-root" in words) == (os.geteuid() == 0)
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", "pipe"):
        with pytest.raises(InvalidInput, match="cannot read the file of hosts"):
            mpi_launch_of(RING, None, None, f"@{tmp_path / name}")


@pytest.mark.parametrize(
    ("where", "hosts", "said"),
    [
        (None, "@", "--hosts @ names no file"),  # of a variable that is not set
        (None, "", "--hosts '' names no host"),
        ("moon", None, "choose from fabric, cluster, loopback"),
    ],
)
def test_no_hosts_and_other_kinds_of_network_are_refused(where: str | None, hosts: str | None, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        mpi_launch_of(RING, where, None, hosts)


@pytest.mark.usefixtures("_open_mpi", "_fabric")
def test_open_mpi_in_a_fabric_uses_tcp_and_the_script() -> None:
    found = mpi_launch_of(RING, None, None, None)
    words = list(_until_ranks(found.argv))
    assert words[words.index("plm_ssh_agent") + 1] == SCRIPT
    assert words[words.index("--host") + 1] == "10.99.0.1,10.99.0.2,10.99.0.3,10.99.0.4"
    assert found.environment["OMPI_MCA_btl"] == "tcp,self"
    assert words[words.index("OMPI_MCA_btl") - 1] == "-x"


@pytest.mark.usefixtures("_fabric")
def test_a_fabric_that_is_up_comes_before_an_allocation_and_hosts_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_NODEFILE", "nodes")
    found = mpi_launch_of(RING, None, None, None)
    assert found.argv[:3] == ("env", "NODE=it's 0", "mpiexec")
    assert found.facts == {"network": "fabric", "fabric": "lab", "link_mbps": 50.0}
    assert found.environment["MPIR_CVAR_NOLOCAL"] == "1"
    assert SCRIPT in found.argv
    assert found.is_here
    assert mpi_launch_of(RING, None, None, "a,b").facts == {"network": "cluster"}
    assert mpi_launch_of(RING, "cluster", None, None).facts == {"network": "cluster"}


@pytest.mark.usefixtures("_fabric")
def test_the_script_takes_a_command_to_its_node_as_ssh_does(tmp_path: Path) -> None:
    script = tmp_path / "enter"
    script.write_text(mpi_launch_of(RING, "fabric", None, None).script)
    script.chmod(0o700)
    command = [str(script), "-x", "-q", "10.99.0.3", 'printf "%s|"', '"$NODE"', '"two words"']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "it's 2 from inside|two words|"
    assert subprocess.run([str(script), "10.0.0.9", "true"], check=False).returncode == 1


def test_nowhere_to_run_is_unavailable_and_no_allocation_replaces_a_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    way_out = "run: chorale fabric up ring:4 --link-mbps 50; or name --hosts"
    for where in (None, "fabric"):
        with pytest.raises(Unavailable, match=f"none for ring:4; {way_out}"):
            mpi_launch_of(RING, where, None, None)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(Unavailable, match="none for fabric lab"):
        mpi_launch_of(RING, None, "lab", None)


@pytest.mark.parametrize(("command", "said"), [("exit 0", ""), ("exit 3", "3"), ("kill -TERM $$", "143")])
@pytest.mark.parametrize("variable", ["PMI_RANK", "PMIX_RANK", "SLURM_PROCID"])
def test_the_shell_of_a_rank_says_of_what_it_died(command: str, said: str, variable: str) -> None:
    shell = launch.rank_command("sh", "-c", command)
    environment = {**os.environ, variable: "5"}
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
    expected = f"\nchorale: rank 5 ended with code {said}\n" if said else ""
    assert done.stdout == expected
    assert done.returncode == int(said or 0)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("mpiexec (Open MPI) 5.0.11\\n\\nReport bugs to", "Open MPI 5.0.11"),
        ("HYDRA build details:\\n    Version:       5.0.2\\n", "MPICH 5.0.2"),
        ("Some vendor's launcher", "MPICH"),
    ],
)
def test_an_mpiexec_is_known_by_its_version(said: str, name: str, tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\nprintf "{said}"\n')
    mpiexec.chmod(0o700)
    launcher = mpi_launcher(str(mpiexec))
    assert str(launcher) == name
    assert isinstance(launcher, OpenMpiLauncher if "Open" in name else MpichLauncher)
    with pytest.raises(Unavailable, match="mpiexec does not print its version"):
        mpi_launcher(str(tmp_path / "none"))
