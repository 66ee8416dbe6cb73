"""Determines how to start the ranks of an MPI job: on hosts, in a scheduler's allocation, or in a fabric."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from chorale.runners.execution.started_ranks import TOKEN
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch import processes, slurm
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

SCRIPT = "@script@"
"""Placeholder in a command for the path of a script that runs a command on a node, with the same arguments as ssh."""

_INSTALL = "pip install 'chorale-collectives[mpi]', or load the site's MPI and pip install mpi4py"
_LIMIT_S = 20.0


OPEN_MPI = "Open MPI"
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE")
"""Environment variables that schedulers set in a job, and from which the launcher gets the job's hosts."""
_SUPERVISE = (
    '"$@"; code=$?; test $code -eq 0 && exit; rank=${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:--1}}}; '
    """printf '\\nchorale: rank %s ended with code %s\\n' "$rank" "$code"; sleep 1; exit $code"""
)
"""Shell script that runs a rank and, if the rank dies, prints its number and exit code before the launcher notices. The
launcher itself cannot report this reliably, because it kills all other ranks and may then blame any of them."""


@dataclass(frozen=True, slots=True)
class MpichLauncher:
    """Builds command-line options (except the number of ranks) for MPICH's launcher Hydra and its derivatives.

    version:            version of this MPI; empty if it is unknown
    fabric_environment: environment variables that make messages use only a fabric's links
    """

    version: str = ""

    name: ClassVar[str] = "MPICH"
    fabric_environment: ClassVar[Mapping[str, str]] = {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "MPIR_CVAR_NOLOCAL": "1",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": NODE_DEVICE,
    }

    def on_hosts(self, hosts: str | None) -> tuple[str, ...]:
        """Return the options for ranks on `hosts`, a comma-separated list in rank order, or None for the hosts of the
        scheduler's allocation.
        """
        return () if hosts is None else ("-hosts", hosts)

    def in_fabric(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return the options for one rank on each node of a fabric; messages use only the fabric's links."""
        by_script = ("-ppn", "1", "-launcher", "ssh", "-launcher-exec", SCRIPT)
        return ("-iface", NODE_DEVICE, *self.on_hosts(",".join(addresses)), *by_script)

    def passing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the options that pass the variables `names` to all ranks. Hydra needs none: it passes everything."""
        return ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


class OpenMpiLauncher(MpichLauncher):
    """Builds options for Open MPI's mpirun, version 5.0 or later."""

    name: ClassVar[str] = OPEN_MPI
    fabric_environment: ClassVar[Mapping[str, str]] = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": NODE_DEVICE,
        "OMPI_MCA_mpi_yield_when_idle": "1",  # Open MPI does not see that a fabric's nodes share cores
    }

    def on_hosts(self, hosts: str | None) -> tuple[str, ...]:
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        named = ("--host", hosts) if hosts else ()
        return (*root, *named, "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")

    def in_fabric(self, addresses: Sequence[str]) -> tuple[str, ...]:
        by_script = ("--prtemca", "plm_ssh_agent", SCRIPT, "--prtemca", "plm_ssh_no_tree_spawn", "1")
        attached = "--leave-session-attached"  # its daemons remain descendants of the launcher and die with it
        return (*self.on_hosts(",".join(addresses)), "--prtemca", "prte_if_include", NODE_DEVICE, *by_script, attached)

    def passing(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(word for name in names for word in ("-x", name))


def find_mpiexec() -> str:
    """Return the launcher next to this Python (where wheels install it) or on PATH. Raises Unavailable without MPI."""
    if find_spec("mpi4py") is None:
        raise Unavailable("the mpi runner needs mpi4py, which is not installed", "", _INSTALL)
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise Unavailable("the mpi runner needs mpiexec, which is neither next to Python nor on PATH", "", _INSTALL)
    return path


@cache
def mpi_launcher(mpiexec: str) -> MpichLauncher:
    """Return an object that builds options for `mpiexec`: for Open MPI if its version text says so, else for MPICH."""
    try:
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable("mpiexec does not print its version: {}", error, _INSTALL) from error
    text = done.stdout + done.stderr
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) *(\S*)", text):
        return OpenMpiLauncher(match[1])
    match = re.search(r"Version: *(\S+)", text)
    return MpichLauncher(match[1] if match else "")


@dataclass(frozen=True, slots=True)
class RankHosts:
    """The hosts of an MPI job as mpiexec expects them, and each rank's host if it is known before the start.

    names:    a comma-separated list, with `:COUNT` for hosts with several ranks; None to let the launcher find them
    expected: each rank's host; empty if the launcher decides
    """

    names: str | None
    expected: tuple[str, ...] = ()


def rank_hosts(hosts: str | None, ranks: int) -> RankHosts:
    """Return the hosts of `ranks` ranks; `hosts` has the form that `MpiRunner` accepts.

    If there are as many hosts as ranks, each gets one rank, in this order. In a Slurm job, None means all nodes of the
    job, and hosts without counts may be fewer than ranks: each host then gets a block of consecutive ranks. Raises
    InvalidInput if the blocks would differ in size, if the hosts have places for more ranks than there are, or if the
    file of hosts cannot be read.
    """
    if hosts is None and not slurm.in_slurm_job():
        return RankHosts(None)
    listed = slurm.SlurmAllocation.current().hosts_of(ranks) if hosts is None else _listed(hosts)
    if slurm.in_slurm_job() and len(listed) < ranks and all(count == 1 for _, count in listed):
        if ranks % len(listed):
            rule = f"hosts of a Slurm job must share the {ranks} ranks evenly, or have counts, as in n1:3,n2:5"
            raise InvalidInput(rule, hosts, "name other hosts, or add counts")
        listed = [(host, ranks // len(listed)) for host, _ in listed]
    expected = tuple(host for host, count in listed for _ in range(count))
    if len(expected) > ranks:
        rule = f"--hosts must have at most one place for each of the {ranks} ranks"
        raise InvalidInput(rule, f"{hosts} with {len(expected)}", "name fewer hosts, or run a larger network")
    names = ",".join(f"{host}:{count}" if count > 1 else host for host, count in listed)
    return RankHosts(names, expected if len(expected) == ranks else ())


def require_known_hosts(hosts: str | None) -> None:
    """Raise Unavailable if a host in `hosts` (in the form of `MpiRunner`) has no address; name the first such host."""
    for host in dict.fromkeys(name for name, _ in _listed(hosts or "")):
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            way_out = "check the spelling, or name its address; `getent hosts NAME` must know it on this machine"
            raise Unavailable("a host of --hosts has no address: {}", f"{host}: {error}", way_out) from None


def _listed(hosts: str) -> Sequence[tuple[str, int]]:
    """Return (host, number of ranks) for each host in a comma-separated list or in @FILE (one host per line)."""
    words = [word for word in hosts.split(",") if word]
    if hosts.startswith("@"):
        path = Path(hosts.removeprefix("@"))
        try:
            lines = path.read_text(errors="replace").splitlines() if path.is_file() else None
        except (OSError, ValueError):  # ValueError: the path contains a zero byte
            lines = None
        if lines is None:
            way_out = "check its path, or list the hosts with commas"
            raise InvalidInput("cannot read the file of hosts: {}", hosts, way_out)
        words = [found[0] for line in lines if (found := line.split("#")[0].split())]
    entries = (word.partition(":") for word in words)
    return [(name, int(count) if count.isdigit() else 1) for name, _, count in entries]


@dataclass(frozen=True, slots=True)
class MpiLaunch:
    """The command `argv`, which starts the ranks of an MPI job, and facts about the job.

    environment: additional environment variables
    script:      content of the file that the command names as `SCRIPT`; empty if there is none
    facts:       facts about the network, for a measurement's environment
    is_here:     whether the ranks are processes on this machine
    hosts:       each rank's host if it is known before the start, else empty
    in_steps:    whether the launcher starts Slurm job steps, which must be ended separately
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    script: str = ""
    facts: Facts = field(default_factory=dict)
    is_here: bool = False
    hosts: tuple[str, ...] = ()
    in_steps: bool = False


def mpi_launch_of(topology: Topology, where: str | None, fabric: str | None, hosts: str | None) -> MpiLaunch:
    """Return the command that starts the ranks of `topology`.

    where:  `fabric`, `cluster` or `loopback`; None for the topology's fabric if it is up, else the cluster
    fabric: name of the fabric, needed if several are up
    hosts:  comma-separated list of cluster hosts in rank order, or @FILE with one per line; None for the allocation of
            the scheduler job to which this process belongs

    Raises InvalidInput if `where` is unknown, if several fabrics match, if the host file cannot be read, or if a
    launcher has started several copies of this process. Raises Unavailable without MPI or the requested network.
    """
    processes.require_network_kind(where)
    slurm.require_one_process()
    if hosts in ("", "@"):
        rule = f"--hosts {{}} names no {'file' if hosts else 'host'}"
        raise InvalidInput(rule, hosts or "''", "check that the variable in it, such as $PBS_NODEFILE, is set")
    mpiexec = find_mpiexec()
    ranks = topology.compute_count
    command = (*_RANK, str(ranks))
    launcher = mpi_launcher(mpiexec)
    may_be_fabric = where in (None, processes.FABRIC) and hosts is None
    if may_be_fabric and (found := find_fabric(topology.id, fabric)) is not None:
        # The launcher runs on rank 0 and reaches the other nodes with a script that takes options, an address and a
        # command, like ssh.
        environment = {**processes.rank_environment(), **launcher.fabric_environment}
        options = launcher.in_fabric([found.address(rank) for rank in range(found.ranks)])
        start = (mpiexec, *options, *launcher.passing((*environment, TOKEN)), "-n", str(found.ranks), *command)
        cases = "\n".join(
            f'{found.address(rank)}) exec {shlex.join(found.command_prefix(rank, from_inside=True))} /bin/sh -c "$*" ;;'
            for rank in range(found.ranks)
        )
        skip = 'while case "$1" in -*) ;; *) false ;; esac; do shift; done'
        script = f'#!/bin/sh\n{skip}\nhost="$1"\nshift\ncase "$host" in\n{cases}\nesac\nexit 1\n'
        return MpiLaunch((*found.command_prefix(0), *start), environment, script, found.facts(), is_here=True)
    has_cluster = hosts is not None or any(variable in os.environ for variable in ALLOCATIONS)
    if where == processes.LOOPBACK:
        placed = RankHosts("localhost")
    elif has_cluster and where != processes.FABRIC and fabric is None:
        placed = rank_hosts(hosts, ranks)
    else:
        rule = "the runner mpi needs a fabric that is up, hosts, or an allocation of a scheduler: {}"
        wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50; or name --hosts"
        raise Unavailable(rule, f"there is none for {wanted}", way_out)
    in_steps = where != processes.LOOPBACK and slurm.in_slurm_job()
    environment = processes.rank_environment()
    # The launcher finds an allocation's hosts by itself; in a Slurm job, steps keep the order of hosts.
    options = (*launcher.on_hosts(placed.names), *launcher.passing((*environment, TOKEN)))
    argv = (mpiexec, *options, "-n", str(ranks), *command)
    is_here, script = where == processes.LOOPBACK, slurm.HYDRA_SCRIPT if in_steps else ""
    facts = {"network": processes.LOOPBACK if is_here else processes.CLUSTER}
    return MpiLaunch(argv, environment, script, facts, is_here, placed.expected, in_steps)


def start_launch(
    launch: MpiLaunch, words: Sequence[str] = (), variables: Mapping[str, str] = MappingProxyType({})
) -> processes.LocalProcess:
    """Start the launcher. `words` and `variables` are additional arguments and environment variables for the ranks.

    The caller must end the launcher and all processes that it starts.
    """
    command = f"exec {shlex.join((*launch.argv, *words))}".replace(SCRIPT, '"$PWD/launcher"')
    if launch.is_here:  # put MPI's temporary files where they are always removed
        command = f'export TMPDIR="$PWD"\n{command}'
    return slurm.start_launcher(command, {**launch.environment, **variables}, launch.in_steps, launch.script)


def rank_command(*argv: str) -> tuple[str, ...]:
    """Return a command that runs `argv` as a rank, in a shell that reports how the rank ended."""
    return ("/bin/sh", "-c", _SUPERVISE, "sh", *argv)


_RANK = rank_command(sys.executable, "-P", "-m", "chorale.runners.mpi.rank")
