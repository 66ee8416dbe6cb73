"""Time MPI collectives alternately with the programs of a table (through the preloaded library) and with MPI alone.

    python -P -m chorale.job.mpi.benchmark TABLE --sizes 4KiB:4MiB:x4

Ranks run where the mpi runner would start them: on the running emulated network of the table's topology, or on --hosts.
The exit code is 1 if a result differs from MPI's own by a byte, or if no program ran.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chorale.job.mpi.preload import NATIVE, find_mpicc, preload_library
from chorale.job.settings import read_table
from chorale.runners.api.units import parse_sizes
from chorale.runners.mpi.launch import mpi_launch_of, rank_command, start_launch
from chorale.runners.process_launch.processes import STDERR, STDOUT
from chorale.synth.collective import STANDARD
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

_MOST_BYTES = 2**30


def compare(topology: Topology, sizes: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    """Return a row per size (median times in microseconds, and the table's speedup) and the job's report.

    topology: network of the table's ranks
    sizes:    sizes of the whole vector in bytes

    Raises CheckFailed if the launch fails, a result is wrong or no program of the table ran, and Unavailable without
    MPI or the network.
    """
    with tempfile.TemporaryDirectory(prefix="chorale-benchmark-") as folder:
        program, report = Path(folder) / "collective_times", Path(folder) / "report.json"
        command: list[str | Path] = [find_mpicc(), "-O2", NATIVE / "collective_times.c", "-o", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60.0)  # noqa: S603
        if done.returncode:
            raise Unavailable("mpicc cannot compile a program: {}", done.stderr.strip()[-500:], "install a C compiler")
        variables = {
            "LD_PRELOAD": preload_library(),
            "CHORALE_TABLE": options.table.resolve(),
            "CHORALE_REPORT": report,
        }
        words = [options.collective, options.repeats, int(options.uneven), *sizes]
        command = [*(f"{name}={value}" for name, value in variables.items()), program, *map(str, words)]
        said = _launched(topology, command, options)
        counts = json.loads(report.read_text())
    if not counts["programs"]:
        way_out = "name a table that covers the collective and its sizes"
        raise CheckFailed("no program of the table ran: {}", f"{counts['fallbacks']}", way_out)
    rows = []
    for _, size, _, *times in said:
        turns = times[: options.repeats], times[options.repeats :]
        chorale_us, mpi_us = (statistics.median(map(float, turn)) * 1e6 for turn in turns)
        times_us = {"mpi_us": mpi_us, "chorale_us": chorale_us, "speedup": mpi_us / chorale_us}
        rows.append({"size_bytes": int(size), **times_us})
    return {"collective": options.collective, "ranks": topology.compute_count, "sizes": rows, "report": counts}


def _launched(topology: Topology, words: Sequence[str | Path], options: argparse.Namespace) -> list[list[str]]:
    """Launch the program; return the words of the line that it prints for each size. words: NAME=VALUE…, command"""
    command = rank_command("/usr/bin/env", *map(str, words))
    started = start_launch(mpi_launch_of(topology, options.where, options.fabric, options.hosts, command))
    deadline_s = time.monotonic() + options.timeout
    try:
        while (code := started.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        lines = (started.read(STDOUT) + started.read(STDERR)).decode(errors="replace").splitlines()
    finally:
        started.close()
    if code is None:
        way_out = "allow more time by --timeout, or name fewer sizes"
        raise CheckFailed("the program did not finish within {}", f"{options.timeout} s", way_out)
    said = [line.split() for line in lines if line.startswith("times ")]
    if code:
        wrong = [size for _, size, is_right, *_ in said if is_right == "0"]
        found = f"wrong at {', '.join(wrong)} bytes" if wrong else "; ".join(lines[-3:]) or f"it ended with code {code}"
        raise CheckFailed("some ranks failed or had wrong results: {}", found, "read their messages")
    return said


def _network_and_sizes(options: argparse.Namespace) -> tuple[Topology, list[int]]:
    """Return the table's network, and the sizes in bytes, rounded up so that all ranks get whole elements."""
    table, _ = read_table(options.table)
    spec = options.topology or table.topology.get("spec")
    if not isinstance(spec, str):
        raise InvalidInput("the table does not state its topology", "", "name it by --topology")
    topology = parse_topology(spec)
    if topology.compute_count != table.ranks:
        rule, counts = "topology and table have different numbers of ranks: {}", (topology.compute_count, table.ranks)
        raise InvalidInput(rule, f"{counts[0]} and {counts[1]}", "name another by --topology")
    unit = 4 * table.ranks  # one float for each rank
    sizes = list(dict.fromkeys(-(-size // unit) * unit for size in parse_sizes(options.sizes)))
    if max(sizes) > _MOST_BYTES:
        raise InvalidInput(f"sizes must be at most {_MOST_BYTES} bytes", max(sizes), "name smaller ones")
    return topology, sizes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m chorale.job.mpi.benchmark", description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--collective", choices=[name.value for name in STANDARD], default="allreduce")
    parser.add_argument("--sizes", default="4KiB:4MiB:x4", help="sizes of the complete vector")
    parser.add_argument("--uneven", action="store_true", help="shards of different sizes (MPI_Alltoallv and others)")
    parser.add_argument("--repeats", type=int, default=20, help="repetitions of each size")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="time limit in seconds")
    parser.add_argument("--topology", metavar="SPEC", help="topology, by default the table's")
    parser.add_argument("--fabric", metavar="NAME", help="fabric, if several are up")
    parser.add_argument("--hosts", help="hosts of a cluster, a comma list or @FILE")
    parser.add_argument("--where", help="fabric, cluster or loopback")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        document = compare(*_network_and_sizes(options), options)
    except ChoraleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(document, indent=1) + "\n" if options.json else _text(document))
    return 0


def _text(document: Mapping[str, Any]) -> str:
    head = "{collective}, {ranks} ranks\n{0:>10} {1:>10} {2:>10} {3}\n".format(
        "bytes", "MPI us", "table us", "speedup", **document
    )
    row = "{size_bytes:>10} {mpi_us:>10.1f} {chorale_us:>10.1f} {speedup:>7.2f}\n"
    text = head + "".join(row.format(**each) for each in document["sizes"])
    if calls := document["report"]["exchanges"]["calls"]:
        each_us = document["report"]["exchanges"]["seconds"] / calls * 1e6
        text += f"{calls} exchanges of shard sizes, {each_us:.1f} us each, are part of these times\n"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
