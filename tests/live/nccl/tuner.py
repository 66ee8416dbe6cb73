"""A tuning table as NCCL's tuner plug-in applies it, on four ranks that share one GPU: what ran is read off NCCL's log.

`python -m tests.live.nccl.tuner --as-hosts` prints what ran without a plug-in and with it. NCCL before
2.30 refuses two ranks of a host on a GPU: NCCL_HOSTID lets each be a host of its own, so that all go through a socket.
"""

import argparse
import json
import os
import re
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chorale.job.nccl.plugin import tuner_plugin

RANKS = 4
LIMIT_S = 90
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
SIZES_BYTES = (1024, 65536, 1 << 20, 1 << 24)
CALLS = tuple((name, size_bytes) for name in COLLECTIVES for size_bytes in SIZES_BYTES)
NAMES = dict(zip(("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"), COLLECTIVES, strict=True))
_RAN = re.compile(r"INFO (\w+): (\d+) Bytes -> Algo (\w+) [Pp]roto (\w+) .*?channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


_OF_TUNER = re.compile("TUNER|tuner|Chorale")


@dataclass(frozen=True, slots=True)
class Ran:
    """What NCCL ran for a call, by its own word; it counts the bytes of allgather and reduce_scatter of one rank."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """exits: of all ranks; wrong: calls with a wrong result; ran: on rank 0; said: what the tuner said there."""

    exits: tuple[int | None, ...]
    wrong: tuple[Any, ...]
    ran: tuple[Ran, ...]
    said: tuple[str, ...]
    errors: tuple[str, ...]


def run(library: Path, table_csv: str | None, plugin: Path | None, as_hosts: bool) -> Outcome:
    """Run all CALLS on four ranks. as_hosts: each as a host of its own, else all on one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [_start(rank, library, folder, table_csv, plugin, as_hosts) for rank in range(RANKS)]
        try:
            said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            said = [("", "no end in time")]
        finally:
            for rank in ranks:
                rank.kill()
        wrong = tuple(entry for out, _ in said if out for entry in json.loads(out.splitlines()[-1]))
        errors = tuple(error.strip().splitlines()[-1] for _, error in said if error.strip())
        log = (folder / "log0").read_text() if (folder / "log0").exists() else ""
        tuner = tuple(line.partition("NCCL ")[2] for line in log.splitlines() if _OF_TUNER.search(line))
        return Outcome(tuple(rank.poll() for rank in ranks), wrong, tuple(_ran(log)), tuner, errors)


def _start(
    rank: int, library: Path, folder: Path, table_csv: str | None, plugin: Path | None, as_hosts: bool
) -> subprocess.Popen[str]:
    environment = dict(os.environ) | {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": f"{folder}/log{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }
    environment |= {"NCCL_HOSTID": f"host{rank}"} if as_hosts else {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if plugin is not None:
        environment["NCCL_TUNER_PLUGIN"] = str(plugin)
    if table_csv is not None:
        (folder / f"tuner{rank}.csv").write_text(table_csv)
        environment["NCCL_TUNER_CONFIG_FILE"] = f"{folder}/tuner{rank}.csv"
    given = {"library": str(library), "runtime": str(found("libcudart.so.1[0-9]")), "rank": rank, "ranks": RANKS}
    arguments = json.dumps(given | {"folder": str(folder), "calls": CALLS})
    command = [sys.executable, str(Path(__file__).parent / "rank.py"), arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def _ran(log: str) -> Iterator[Ran]:
    for name, size, algorithm, protocol, low, high in _RAN.findall(log):
        yield Ran(NAMES.get(name, name), int(size), algorithm.lower(), protocol.lower(), int(high) - int(low) + 1)


def found(pattern: str) -> Path:
    """Return a library of CUDA that a package of Python brought, or the toolkit. FileNotFoundError if there is none."""
    roots = [Path(path) / "nvidia" for path in (*site.getsitepackages(), *sys.path) if path]
    roots += [Path("/usr/local/cuda/lib64")]
    for root in roots:
        for path in sorted(root.rglob(pattern)):
            return path
    raise FileNotFoundError(pattern)


def wanted(table_csv: str, collective: str, size_bytes: int) -> tuple[str, str, int] | None:
    """Return algorithm, protocol and channels of the first row of `table_csv` that serves a call, by the file."""
    names = {"reduce_scatter": "reducescatter"}
    for line in table_csv.splitlines():
        fields = line.split(",")
        if fields[0] == names.get(collective, collective) and int(fields[1]) <= size_bytes <= int(fields[2]):
            return fields[3], fields[4], int(fields[5])
    return None


def compared(table_csv: str, plain: Outcome, tuned: Outcome) -> list[Mapping[str, Any]]:
    """Return for each call what ran without and with the table, and what the table says."""
    return [
        {"call": call, "table": wanted(table_csv, *call), "without": _choice(before), "with": _choice(after)}
        for call, before, after in zip(CALLS, plain.ran, tuned.ran, strict=False)
    ]


def _choice(ran: Ran) -> tuple[str, str, int]:
    return ran.algorithm, ran.protocol, ran.channels


def _example_csv() -> str:
    from tests.live.nccl.example import example_csv  # noqa: PLC0415 - takes pydantic, which not every GPU machine has

    return example_csv()


def main() -> None:
    """Print outcomes as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugin", type=Path, help="by default Chorale's, which is built")
    parser.add_argument("--library", type=Path, help="libnccl.so.2; by default the one that Python's packages have")
    parser.add_argument("--as-hosts", action="store_true", help="each rank is a host of its own")
    parser.add_argument("--csv", type=Path, help="a table for the plug-in; by default one of an example")
    given = parser.parse_args()
    library = given.library or found("libnccl.so.2")
    table_csv = given.csv.read_text() if given.csv else _example_csv()
    plain = run(library, None, None, given.as_hosts)
    tuned = run(library, table_csv, (given.plugin or tuner_plugin()).resolve(), given.as_hosts)
    rows = compared(table_csv, plain, tuned)
    sys.stdout.write(table_csv + json.dumps({"rows": rows, "tuned": asdict(tuned)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
