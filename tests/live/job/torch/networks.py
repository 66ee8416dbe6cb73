"""Two hosts with several networks between them: a job's bytes by device, and what it says where there is no way.

`python -m tests.live.job.torch.networks` is for `unshare --net`; each host is a process with a network of its own.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.job.torch.registration import register
from tests.live.job.torch.meeting import Meeting, program_calls
from tests.live.job.torch.tables import program_for

NETWORKS = {"eno1": "10.0.1.{}/24", "ib0": "10.0.2.{}/24", "ib1": "10.0.3.{}/24", "six0": "fd00:4::{}/64"}
ALIKE = "docker0", "172.17.0.1/16"
"""A device that each host has for itself, with the same address everywhere."""
BYTES = 1 << 22
_NEW_NETWORK, _NEW_HOSTNAME = 0x40000000, 0x04000000
_LIBC = ctypes.CDLL(None, use_errno=True)

CASES: dict[str, dict[str, str]] = {
    "gloo": {"GLOO_SOCKET_IFNAME": "ib0"},
    "nccl": {"NCCL_SOCKET_IFNAME": "=ib1"},
    "excluded": {"NCCL_SOCKET_IFNAME": "^docker,eno,ib0,six"},
    "route": {"MASTER_ADDR": "10.0.2.1"},
    "anything": {},
    "several": {"CHORALE_INTERFACE": "ib0,ib1"},
    "six": {"CHORALE_INTERFACE": "six0"},
    "nowhere": {"CHORALE_INTERFACE": "docker0"},
}


def _bytes_sent() -> dict[str, int]:
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(rest.split()[8]) for name, rest in (line.split(":") for line in lines)}


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
                assert program_calls() == {"allreduce": 1}
            found[case] = [name for name, sent in _bytes_sent().items() if sent - before[name] > BYTES // 4]
        except Exception as error:  # what it says is looked at
            found[case] = str(error)
    return found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    """Print what each host found, as JSON."""
    program = program_for("allreduce", ranks=2)
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, program.digest)
    folder = Path(tempfile.mkdtemp())
    table = Table({"spec": "complete:2"}, 2, (entry,), {program.digest: program})
    (folder / "table").write_bytes(table_bytes(table))
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
    for pid in hosts:
        os.waitpid(pid, 0)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    sys.stdout.write(re.sub(r"\n", " ", json.dumps(found)) + "\n")


if __name__ == "__main__":
    main()
