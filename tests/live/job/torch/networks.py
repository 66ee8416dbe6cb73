"""Two hosts with several networks between them: a job's bytes by device, and what it says where there is no way.

`unshare --net python -m tests.live.job.torch.networks` prints, for each case and host, the bytes that each device sent:
of jobs in torch and, where MPI is installed, of MPI jobs. Each host is a process with a network of its own.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from chorale.job.mpi.preload import preload_library
from chorale.job.torch.registration import register
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.mpi.launch import SCRIPT, find_mpiexec, mpi_launcher
from tests.live.job.torch.meeting import Meeting, program_calls
from tests.live.job.torch.tables import program_for, table_of, written

NETWORKS = {"eno1": "10.0.1.{}/24", "ib0": "10.0.2.{}/24", "ib1": "10.0.3.{}/24", "six0": "fd00:4::{}/64"}
ALIKE = "docker0", "172.17.0.1/16"
"""A device that each host has for itself, with the same address everywhere."""
BYTES = 1 << 22
_NEW_NETWORK, _NEW_HOSTNAME = 0x40000000, 0x04000000
_LIBC = ctypes.CDLL(None, use_errno=True)

CASES: dict[str, dict[str, str]] = {
    "gloo alone": {"GLOO_SOCKET_IFNAME": "ib0", "backend": "gloo"},
    "gloo": {"GLOO_SOCKET_IFNAME": "ib0"},
    "nccl": {"NCCL_SOCKET_IFNAME": "=ib1"},
    "excluded": {"NCCL_SOCKET_IFNAME": "^docker,eno,ib0,six"},
    "route": {"MASTER_ADDR": "10.0.2.1"},
    "route without a table": {"MASTER_ADDR": "fd00:4::1", "CHORALE_TABLE": ""},
    "anything": {},
    "several": {"CHORALE_INTERFACE": "ib0,ib1"},
    "six": {"CHORALE_INTERFACE": "six0"},
    "nowhere": {"CHORALE_INTERFACE": "docker0"},
}


MPI_CASES: dict[str, dict[str, str]] = {
    "mpi alone": {"CHORALE_TABLE": ""},
    "mpi": {},
    "mpi excluded": {"OMPI_MCA_btl_tcp_if_exclude": "docker0,eno1,ib0,lo,six0"},
    "mpi anything": {},
    "mpi several": {"CHORALE_INTERFACE": "ib0,ib1"},
    "mpi six": {"CHORALE_INTERFACE": "six0"},
}
"""In the first two, MPI is told to use TCP over ib0."""
_MPI_RANK = """
import numpy
from mpi4py import MPI
total = numpy.empty(1 << 20, numpy.float32)
for _ in range(3):
    MPI.COMM_WORLD.Allreduce(numpy.ones(1 << 20, numpy.float32), total)
    assert (total == 2).all()
"""


def _bytes_sent(process: int | str = "self") -> dict[str, int]:
    lines = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(rest.split()[8]) for name, rest in (line.split(":") for line in lines)}


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: sent - before[name] for name, sent in after.items() if sent > before[name]}


def chosen(sent: Mapping[str, int]) -> list[str]:
    """Return the devices with a good part of the bytes."""
    return sorted(name for name, count in sent.items() if count > BYTES // 4)


def _host(rank: int, folder: Path, wait: Callable[[], None]) -> dict[str, object]:
    if _LIBC.unshare(_NEW_NETWORK | _NEW_HOSTNAME) != 0:
        raise OSError(ctypes.get_errno(), "no network of its own")
    name = f"10.0.1.{rank + 1}"  # what gloo itself takes, where it is not told
    _LIBC.sethostname(name.encode(), len(name))
    wait()
    _ip("link", "set", "lo", "up")
    for device, address in (*NETWORKS.items(), ALIKE):
        more = ("nodad",) if ":" in address else ()
        _ip("addr", "add", address.format(rank + 1), "dev", device, *more)
        _ip("link", "set", device, "up")
    _ip("link", "set", "far", "up")
    found: dict[str, object] = {}
    meeting = Meeting(folder, rank, 2)
    for case, variables in CASES.items():
        limit = timedelta(seconds=4 if case == "nowhere" else 60)
        before = _bytes_sent()
        try:
            with meeting.job(timeout=limit, **variables):  # type: ignore[arg-type, unused-ignore]
                tensor = torch.ones(BYTES // 4)
                dist.all_reduce(tensor)
                assert tensor.eq(2).all()
                assert program_calls() == ({} if {"backend", "CHORALE_TABLE"} & set(variables) else {"allreduce": 1})
            found[case] = _more(before, _bytes_sent())
        except Exception as error:  # what it says is looked at
            found[case] = str(error)
    return found


def _mpi_jobs(hosts: Sequence[int], folder: Path) -> dict[str, list[dict[str, int]]]:
    """Return what each host sends in each case of MPI. hosts: processes in the networks"""
    addresses = [NETWORKS["eno1"].format(rank + 1).partition("/")[0] for rank in range(2)]
    ways = [
        f'{address}) exec nsenter -t {pid} -n -u sh -c "$*" ;;' for address, pid in zip(addresses, hosts, strict=True)
    ]
    skip = 'while case "$1" in -*) ;; *) false ;; esac; do shift; done'
    script = folder / "launcher"
    script.write_text("\n".join(["#!/bin/sh", skip, 'host="$1"', "shift", 'case "$host" in', *ways, "esac", "exit 1"]))
    script.chmod(0o755)
    mpiexec = find_mpiexec()
    launcher = mpi_launcher(mpiexec)
    by_ib0 = {name: value.replace(NODE_DEVICE, "ib0") for name, value in launcher.fabric_environment.items()}
    options = [word.replace(SCRIPT, str(script)).replace(NODE_DEVICE, "eno1") for word in launcher.in_fabric(addresses)]
    found = {}
    for case, given in MPI_CASES.items():
        told = by_ib0 if case in ("mpi alone", "mpi") else {}
        variables = {"LD_PRELOAD": str(preload_library()), **told, **given}
        words = *options, *launcher.passing((*variables, "CHORALE_TABLE")), "-n", "2", sys.executable, "-c", _MPI_RANK
        before = [_bytes_sent(pid) for pid in hosts]
        command = ["nsenter", "-t", str(hosts[0]), "-n", "-u", mpiexec, *words]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, **variables})
        found[case] = [_more(sent, _bytes_sent(pid)) for sent, pid in zip(before, hosts, strict=True)]
    return found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    program = program_for("allreduce", ranks=2, channels=2)
    folder = Path(tempfile.mkdtemp())
    written(table_of("complete:2", 2, [(program, None, 0, None)]), folder / "table")
    os.environ["CHORALE_TABLE"] = str(folder / "table")
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        os.environ.pop(name, None)
    register()
    torch.set_num_threads(1)
    here, there = os.pipe(), os.pipe()
    hosts: list[int] = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:

            def wait() -> None:
                os.write(here[1], b"x")
                os.read(there[0], 1)

            (folder / f"{rank}.json").write_text(json.dumps(_host(rank, folder, wait)))
            wait()
            os._exit(0)
        hosts.append(pid)
    for _ in hosts:
        os.read(here[0], 1)
    first, second = map(str, hosts)
    for device in NETWORKS:
        _ip("link", "add", device, "netns", first, "type", "veth", "peer", "name", device, "netns", second)
    for host in (first, second):
        _ip("link", "add", ALIKE[0], "netns", host, "type", "veth", "peer", "name", "far", "netns", host)
    os.write(there[1], b"xx")
    for _ in hosts:
        os.read(here[0], 1)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    for case, sent in (_mpi_jobs(hosts, folder) if find_spec("mpi4py") else {}).items():
        for rank in range(2):
            found[rank][case] = sent[rank]
    os.write(there[1], b"xx")
    for pid in hosts:
        os.waitpid(pid, 0)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
