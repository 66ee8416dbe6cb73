"""How the ranks of an MPI job are started: on hosts, in a scheduler's allocation, or in a fabric."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chorale.runners.fabric.fabric import EmulatedFabric, find_fabric
from chorale.runners.measurement.machine import Facts
from chorale.runners.mpi.hosts import rank_hosts
from chorale.runners.mpi.mpiexec import find_mpiexec, mpi_version
from chorale.runners.process_launch.base import CLUSTER, FABRIC, LOOPBACK, require_network_kind
from chorale.runners.process_launch.slurm import HYDRA_SCRIPT, in_slurm_job, require_one_process
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "PE_HOSTFILE")
"""Variables that a scheduler sets inside a job; the launcher reads from there which hosts it has."""


@dataclass(frozen=True, slots=True)
class MpiLaunch:
    """A command that starts the ranks.

    environment: variables besides those that are there anyway
    script:      what has to be in a file that the command names as `SCRIPT`; empty if nothing
    facts:       what the environment of a measurement says about it
    is_here:     whether the ranks are processes of this machine
    honest_bytes: the smallest message that the network does not carry too fast
    hosts:       the host of each rank, where that is determined
    in_steps:    whether the launcher starts steps of a Slurm job, which have to be ended, too
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    script: str = ""
    facts: Facts = field(default_factory=dict)
    is_here: bool = False
    honest_bytes: int = 0
    hosts: tuple[str, ...] = ()
    in_steps: bool = False


def mpi_launch_of(
    topology: Topology,
    where: str | None,
    fabric: str | None,
    hosts: str | None,
    command: Sequence[str] | None = None,
) -> MpiLaunch:
    """Return how to start the ranks of `topology`.

    where:  one of `chorale.runners.process_launch.base`; None takes the fabric that is up for the topology, else the
    cluster fabric: name of the fabric, needed where several are up
    hosts:  the cluster: a comma list in the order of the ranks, or @FILE with one on each line; None means the
            allocation of the scheduler's job that this process is part of
    command: what each rank does, by default to be a rank of the mpi runner

    InvalidInput for an unknown kind, an ambiguous fabric, a file of hosts that cannot be read, or where a launcher has
    started this process several times; Unavailable without MPI, or if there is no such network.
    """
    require_network_kind(where)
    require_one_process()
    mpiexec = find_mpiexec()
    ranks = topology.compute_count
    command = (*_RANK, str(ranks)) if command is None else tuple(command)
    if where == LOOPBACK:
        return _on_hosts(mpiexec, ranks, command, "localhost", LOOPBACK)
    if where != CLUSTER and hosts is None and (found := find_fabric(topology.id, fabric)) is not None:
        return _in_fabric(mpiexec, found, command)
    has_cluster = hosts is not None or any(variable in os.environ for variable in ALLOCATIONS)
    if has_cluster and where != FABRIC and fabric is None:
        return _on_cluster(mpiexec, ranks, command, hosts)
    rule = "MPI needs a network that is the topology: a fabric that is up, hosts, or an allocation of a scheduler"
    wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
    way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50; or name --hosts"
    raise Unavailable(rule, f"none for {wanted}", way_out)


def _on_cluster(mpiexec: str, ranks: int, command: tuple[str, ...], hosts: str | None) -> MpiLaunch:
    """Return how to start `ranks` on a cluster; in a job of Slurm by steps that keep the order of hosts."""
    determined = rank_hosts(hosts, ranks)
    launch = _on_hosts(mpiexec, ranks, command, determined.names, CLUSTER)
    launch = replace(launch, hosts=determined.expected)
    if not in_slurm_job():
        return launch
    options = mpi_version(mpiexec).launcher.in_slurm
    return replace(launch, argv=(mpiexec, *options, *launch.argv[1:]), script=HYDRA_SCRIPT, in_steps=True)


def _on_hosts(mpiexec: str, ranks: int, command: tuple[str, ...], hosts: str | None, network: str) -> MpiLaunch:
    """Return how to start `ranks` on `hosts`; the launcher finds those of an allocation by itself."""
    launcher, environment = mpi_version(mpiexec).launcher, rank_environment()
    options = (*launcher.on_hosts(hosts), *launcher.passing(environment))
    return MpiLaunch(
        (mpiexec, *options, "-n", str(ranks), *command),
        environment,
        facts={"network": network},
        is_here=network == LOOPBACK,
    )


def _in_fabric(mpiexec: str, fabric: EmulatedFabric, command: tuple[str, ...]) -> MpiLaunch:
    """Return how to start a rank on every node of `fabric`, so that all that they say goes over its links.

    The launcher runs on rank 0 and reaches the other nodes by a script in the place of ssh.
    """
    launcher = mpi_version(mpiexec).launcher
    environment = {**rank_environment(), **launcher.fabric_environment}
    addresses = [fabric.address(rank) for rank in range(fabric.ranks)]
    options = (*launcher.in_fabric(addresses), *launcher.passing(environment))
    start = (mpiexec, *options, "-n", str(fabric.ranks), *command)
    argv, honest_bytes = (*fabric.command_prefix(0), *start), fabric.links.honest_bytes
    return MpiLaunch(argv, environment, _enter_script(fabric), fabric.facts(), is_here=True, honest_bytes=honest_bytes)


def rank_environment() -> dict[str, str]:
    """Return the variables of every rank: our modules, and one thread, because there may be more ranks than cores."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}


_SUPERVISE = (
    '"$@"; code=$?; test $code -eq 0 && exit; rank=${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:--1}}}; '
    """printf '\\n@chorale {"answer":"died","rank":%s,"code":%s}\\n' "$rank" "$code"; sleep 1; exit $code"""
)
"""A launcher kills all ranks when one has died, and then takes any of them for the one that died. So a shell sees to
each rank, says which one died of what, and only then lets the launcher know."""


def rank_command(*argv: str) -> tuple[str, ...]:
    """Return the command of a rank that does `argv`."""
    return ("/bin/sh", "-c", _SUPERVISE, "sh", *argv)


_RANK = rank_command(sys.executable, "-P", "-m", "chorale.runners.mpi.rank")


def _enter_script(fabric: EmulatedFabric) -> str:
    """Return a shell script that takes options, an address and a command as ssh does, and runs it on that node."""
    cases = "\n".join(
        f'{fabric.address(rank)}) exec {shlex.join(fabric.command_prefix(rank, from_inside=True))} /bin/sh -c "$*" ;;'
        for rank in range(fabric.ranks)
    )
    skip = 'while case "$1" in -*) ;; *) false ;; esac; do shift; done'
    return f'#!/bin/sh\n{skip}\nhost="$1"\nshift\ncase "$host" in\n{cases}\nesac\nexit 1\n'
