"""Healthy links under load, for an hour: every change of a state that the watch tells is a false alarm.

    python -m tests.live.watch.healthy_hour --minutes 60 --seed 1

Links chosen at random are filled by a TCP connection for some seconds, one after the other. With --precedence, what
emulates the links is given precedence over all else: a cable waits for no processor. Without it, an overload of this
machine slows and stops all links, and the watch has to tell that from a change of one.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import psutil

from chorale.experiments.demos.watch import WatchDemo, WatchProcess
from chorale.runners.fabric.fabric import EmulatedFabric, bring_up, take_down
from chorale.runners.measurement.machine import load_average
from chorale.synth.topology.spec import parse_topology

_PORT = 5000
_PRECEDENCE = -15
_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    connection.sendall(bytes(1 << 16))
"""
_RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
connection, _ = server.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
print(total)
"""


def fill(fabric: EmulatedFabric, src: int, dst: int, seconds: float) -> int:
    """Send from rank to rank as fast as the link allows; return how many bytes arrived."""
    target = [fabric.address(dst), str(_PORT)]
    receiver = subprocess.Popen(
        [*fabric.command_prefix(dst), sys.executable, "-S", "-c", _RECEIVE, *target], stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        sender = [*fabric.command_prefix(src), sys.executable, "-S", "-c", _SEND, *target, str(seconds)]
        subprocess.run(sender, check=True, timeout=seconds + 60)
        return int(receiver.communicate(timeout=60)[0])
    finally:
        receiver.kill()
        receiver.wait()


def main() -> int:
    """Watch and load; print what happened; return 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--precedence", action="store_true", help="of what emulates the links; it takes the right to")
    options = parser.parse_args()
    topology = parse_topology(options.topology)
    fabric = bring_up(topology, Fraction(options.link_mbps), f"healthy-{os.getpid()}")
    try:
        if options.precedence:
            _prefer(fabric.links.wire_pid)
        with tempfile.TemporaryDirectory() as folder:
            demo = WatchDemo(topology, fabric, Path(folder), options.link_mbps)
            with demo.watching() as watch:
                record = _loaded(fabric, demo, watch, options)
    finally:
        take_down(fabric)
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return 1 if record["alarms"] else 0


def _prefer(pid: int | None) -> None:
    """Give all threads of a process precedence."""
    for task in Path(f"/proc/{pid}/task").iterdir() if pid is not None else ():
        os.setpriority(os.PRIO_PROCESS, int(task.name), _PRECEDENCE)


def _loaded(
    fabric: EmulatedFabric, demo: WatchDemo, watch: WatchProcess, options: argparse.Namespace
) -> dict[str, Any]:
    draw = random.Random(options.seed)
    links = sorted(zip(demo.topology.links.src.tolist(), demo.topology.links.dst.tolist(), strict=True))
    began_s, until_s = time.time(), time.monotonic() + 60 * options.minutes
    episodes, sent_bytes, busy_s, loads = 0, 0, 0.0, []
    while time.monotonic() < until_s:
        seconds = draw.uniform(2, 10)
        sent_bytes += fill(fabric, *draw.choice(links), seconds)
        episodes, busy_s = episodes + 1, busy_s + seconds
        loads.append(load_average() or 0.0)
        time.sleep(draw.uniform(2, 10))
    seconds = time.time() - began_s
    process = psutil.Process(watch.process.pid)
    used = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return {
        "seconds": seconds,
        "links": len(links),
        "episodes": episodes,
        "seconds_under_load": busy_s,
        "megabit_per_s_under_load": sent_bytes * 8e-6 / busy_s,
        "load_average": [min(loads), max(loads)],
        "processor_of_watch": sum(times.user + times.system for times in used) / seconds,
        "alarms": [event for event in watch.events if event["event"] == "state" and event["time_s"] > began_s],
    }


if __name__ == "__main__":
    sys.exit(main())
