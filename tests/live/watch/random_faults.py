"""Random sequences of faults while a job trains under watch: no hang, no wrong sum, no lost step.

    python -m tests.live.watch.random_faults --count 100 --seed 1

Each sequence has three faults, of cables, or of a rank that is cut off for some seconds. Then all is mended: the job
must go on, and the watch must publish the healthy table again. After each sequence its figures so far are printed to
stderr. With --minutes no sequence begins after so many.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from chorale.experiments.watch_demo.demo import Json, WatchDemo, WatchProcess, read_steps, wait_until
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import EmulatedFabric, bring_up, take_down
from chorale.runners.measurement.machine import load_average
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

_MBPS = 100
_SEQUENCE_LIMIT_S = 240.0
_KINDS = ("cut", "slow", "flap", "node")


class Faults:
    """Faults of one fabric: what is broken now, and how it is mended."""

    def __init__(self, fabric: EmulatedFabric, topology: Topology, seed: int) -> None:
        ends = zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)
        self._pairs = sorted({(min(pair), max(pair)) for pair in ends})
        self._fabric, self._topology, self._draw = fabric, topology, random.Random(seed)
        self._mends: list[Callable[[], None]] = []

    def one(self) -> str:
        """Cause a fault of a kind at random; return what it was."""
        kind = self._draw.choice(_KINDS)
        pair = self._draw.choice(self._pairs)
        if kind == "node":
            return self._isolate(pair[0])
        if kind == "slow":
            detours.slow_down(self._fabric, pair, Fraction(_MBPS, 10))
            self._mends.append(lambda: detours.speed_up(self._fabric, pair))
        if kind == "cut":
            detours.cut(self._fabric, pair)
            self._mends.append(lambda: detours.mend(self._fabric, pair, self._topology))
        if kind == "flap":
            for _ in range(3):
                detours.cut(self._fabric, pair)
                time.sleep(self._draw.uniform(0.2, 3))
                detours.mend(self._fabric, pair, self._topology)
                time.sleep(self._draw.uniform(0.2, 3))
        return f"{kind} {pair[0]}-{pair[1]}"

    def mend(self) -> None:
        """Mend all that is broken."""
        while self._mends:
            self._mends.pop()()

    def pause(self) -> None:
        """Let time pass before the next fault."""
        time.sleep(self._draw.uniform(0.1, 4))

    def _isolate(self, rank: int) -> str:
        cables = [pair for pair in self._pairs if rank in pair]
        for pair in cables:
            detours.cut(self._fabric, pair)
        time.sleep(self._draw.uniform(1, 6))
        for pair in cables:
            detours.mend(self._fabric, pair, self._topology)
        return f"node {rank}"


def main() -> int:
    """Run the sequences; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--topology", default="hypercube:3")
    options = parser.parse_args()
    topology = parse_topology(options.topology)
    fabric = bring_up(topology, Fraction(_MBPS), f"faults-{os.getpid()}")
    faults = Faults(fabric, topology, options.seed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            demo = WatchDemo(topology, fabric, Path(folder), _MBPS, _SEQUENCE_LIMIT_S * options.count)
            until_s = time.monotonic() + 60 * options.minutes
            record = _sequences(demo, faults, options.count, until_s)
    finally:
        take_down(fabric)
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return 1 if record["wrong_sums"] or record["steps_lost"] else 0


def _sequences(demo: WatchDemo, faults: Faults, count: int, until_s: float) -> Json:
    record: Json = {}
    log, stop = demo.folder / "steps.jsonl", demo.folder / "stop"
    with demo.watching() as watch, demo.training(log, stop):
        healthy = watch.events[-1]["table"] if watch.events[-1]["event"] == "publish" else None
        healthy = healthy or next(event["table"] for event in watch.events if event["event"] == "publish")
        wait_until("the job trains", lambda: len(read_steps(log)) > 2)
        for number in range(count):
            if time.monotonic() > until_s:
                break
            for _ in range(3):
                sys.stderr.write(f"sequence {number}: {faults.one()}\n")
                faults.pause()
            faults.mend()
            wait_until("the healthy table runs again", lambda: _runs(log, watch, str(healthy)))
            record = _record(read_steps(log), number + 1)
            sys.stderr.write(f"{json.dumps(record)}\n")
    return record


def _record(steps: list[Json], sequences: int) -> Json:
    """Return the figures of the sequences so far."""
    return {
        "sequences": sequences,
        "steps": len(steps),
        "tables_taken": sum(before["table"] != after["table"] for before, after in pairwise(steps)),
        "wrong_sums": sum(step["wrong"] > 0 for step in steps),
        "steps_lost": max(step["step"] for step in steps) + 1 - len(steps),
        "longest_step_s": max(after["end_s"] - before["end_s"] for before, after in pairwise(steps)),
        "load_average": load_average(),
    }


def _runs(log: Path, watch: WatchProcess, table: str) -> bool:
    """Return whether all links are healthy for the watch, and the job's last step ran `table`."""
    states: dict[str, str] = {}
    for event in watch.events:
        if event["event"] == "state":
            states[event["link"]] = event["to"]
    steps = read_steps(log)
    return set(states.values()) <= {"healthy"} and bool(steps) and steps[-1]["table"] == table


if __name__ == "__main__":
    sys.exit(main())
