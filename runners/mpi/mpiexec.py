"""The mpiexec that is there: MPICH's, or Open MPI's, with the options that each of them takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.synth.errors import InvalidInput, Unavailable

SCRIPT = "@script@"
"""Stands in a command for the path of a script that reaches a node as ssh would."""

_INSTALL = "pip install 'chorale-collectives[mpi]', or load the site's MPI and pip install mpi4py"
_LIMIT_S = 20.0


class Launcher(Protocol):
    """Options of an mpiexec, without those that say how many ranks there are."""

    def on_hosts(self, hosts: str | None) -> tuple[str, ...]:
        """Return the options for ranks on `hosts` in that order: a comma list, @FILE with one on each line, or None
        for those of the scheduler's allocation. InvalidInput for a file that cannot be read."""
        ...

    def in_fabric(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return the options for a rank on each node of a fabric, whose messages leave by the fabric's links only."""
        ...

    def passing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the options with which all ranks get the variables of `environment`, which the launcher has."""
        ...

    @property
    def in_slurm(self) -> tuple[str, ...]:
        """Options for a job of Slurm, whose steps `HYDRA_SCRIPT` starts for those that can be told so."""
        ...

    @property
    def fabric_environment(self) -> Mapping[str, str]:
        """Variables that keep messages on the links of a fabric."""
        ...


class MpichLauncher:
    """Implements `Launcher` for MPICH's Hydra."""

    fabric_environment: Mapping[str, str] = {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "MPIR_CVAR_NOLOCAL": "1",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": NODE_DEVICE,
    }
    in_slurm = ("-launcher", "slurm", "-launcher-exec", SCRIPT)

    def on_hosts(self, hosts: str | None) -> tuple[str, ...]:
        if hosts is None:
            return ()
        return ("-f", hosts.removeprefix("@")) if hosts.startswith("@") else ("-hosts", hosts)

    def in_fabric(self, addresses: Sequence[str]) -> tuple[str, ...]:
        by_script = ("-ppn", "1", "-launcher", "ssh", "-launcher-exec", SCRIPT)
        return ("-iface", NODE_DEVICE, *self.on_hosts(",".join(addresses)), *by_script)

    def passing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return ()  # it passes on all there are


class OpenMpiLauncher:
    """Implements `Launcher` for Open MPI's mpirun, from 5.0 on."""

    fabric_environment: Mapping[str, str] = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": NODE_DEVICE,
        "OMPI_MCA_mpi_yield_when_idle": "1",  # it takes each node for a machine of its own
    }
    in_slurm: tuple[str, ...] = ()  # see `launcher_environment`

    def on_hosts(self, hosts: str | None) -> tuple[str, ...]:
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        # It would put as many ranks as there are cores on each host of a file.
        names = _hosts_of_file(hosts.removeprefix("@")) if hosts and hosts.startswith("@") else hosts
        named = ("--host", names) if names else ()
        return (*root, *named, "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")

    def in_fabric(self, addresses: Sequence[str]) -> tuple[str, ...]:
        by_script = ("--prtemca", "plm_ssh_agent", SCRIPT, "--prtemca", "plm_ssh_no_tree_spawn", "1")
        attached = "--leave-session-attached"  # its daemons stay descendants of the launcher, and die with it
        return (*self.on_hosts(",".join(addresses)), "--prtemca", "prte_if_include", NODE_DEVICE, *by_script, attached)

    def passing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(word for name in environment for word in ("-x", name))


@dataclass(frozen=True, slots=True)
class MpiVersion:
    """Which MPI an mpiexec is of: its name, and its number as far as it says."""

    name: str
    number: str

    @property
    def launcher(self) -> Launcher:
        return OpenMpiLauncher() if self.name == OPEN_MPI else MpichLauncher()

    def __str__(self) -> str:
        return f"{self.name} {self.number}".strip()


def _hosts_of_file(path: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise InvalidInput("a file of hosts must be there", error, "name another, or hosts as a comma list") from error
    return ",".join(name for line in lines if (name := line.split("#")[0].strip()))


MPICH, OPEN_MPI = "MPICH", "Open MPI"


def find_mpiexec() -> str:
    """Return the launcher: beside this Python, where the wheels put it, or on the path. Unavailable without MPI."""
    if find_spec("mpi4py") is None:
        raise Unavailable("the mpi runner needs mpi4py", "none is installed", _INSTALL)
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise Unavailable("the mpi runner needs mpiexec", "none beside Python or on PATH", _INSTALL)
    return path


@cache
def mpi_version(mpiexec: str) -> MpiVersion:
    """Return which MPI `mpiexec` is of; one that does not say is taken for one of MPICH's kin, which are many."""
    try:
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable("mpiexec must say its version", error, _INSTALL) from error
    text = done.stdout + done.stderr
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) *(\S*)", text):
        return MpiVersion(OPEN_MPI, match[1])
    match = re.search(r"Version: *(\S+)", text)
    return MpiVersion(MPICH, match[1] if match else "")
