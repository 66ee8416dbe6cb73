"""Random sequences of faults while a job trains under watch: no hang, no wrong sum, no lost step.

    python -m tests.live.watch.random_faults --count 100 --seed 1

All sequences meet the same job, one after the other. Each has three faults: a cable is cut, slowed or cut and mended
again and again, a rank is cut off for some seconds, or the watch is killed and starts again. Then all is mended, and
the job must make steps within the time limit of its collectives. After every fifth sequence and the last one the watch
must tell that all links are healthy, and the job must run the healthy table again. Figures so far go to stderr after
each sequence. Sequence `number` depends on the seed and its number alone: --first begins with another one. With
--minutes no sequence begins after so many.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from chorale.experiments.demos.watch import Json, WatchDemo, WatchProcess, read_steps, wait_until
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import bring_up, take_down
from chorale.runners.measurement.machine import load_average
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home
from chorale.tuner.watch.watcher import watch_folder

_MBPS = 100
_SEQUENCE_LIMIT_S = 240.0
_STEPS_AFTER = 2
_TABLE_EVERY = 5
_KINDS = ("cut", "slow", "flap", "node", "watch")


@dataclass(slots=True)
class WatchStarts:
    """The watch of a demo, which may be killed and start again; all are ended by `ended_by`."""

    demo: WatchDemo
    ended_by: ExitStack
    started: list[WatchProcess] = field(default_factory=list)

    def start(self) -> None:
        """Start it, and wait until it has a table."""
        self.started.append(self.ended_by.enter_context(self.demo.watching()))

    def kill(self) -> None:
        """Give it no time to say or write anything."""
        self.started[-1].process.send_signal(signal.SIGKILL)
        self.started[-1].process.wait()

    @property
    def events(self) -> list[Json]:
        """What all of them have printed."""
        return [event for watch in self.started for event in watch.events]

    def are_links_healthy(self) -> bool:
        """Return whether the watch has written that they are."""
        path = watch_folder(Home.from_environment(), "demo-watch") / "state.json"
        return all(row["state"] == "healthy" for row in json.loads(path.read_bytes())["links"])


class Faults:
    """Faults of a fabric and its watch: what is broken now, and how it is mended."""

    def __init__(self, demo: WatchDemo, watch: WatchStarts) -> None:
        links = demo.topology.links
        self._pairs = sorted({(min(p), max(p)) for p in zip(links.src.tolist(), links.dst.tolist(), strict=True)})
        self._demo, self._watch = demo, watch
        self._mends: list[Callable[[], None]] = []

    def cause(self, draw: random.Random) -> str:
        """Cause a fault at random; return what it was."""
        kind, pair = draw.choice(_KINDS), draw.choice(self._pairs)
        rank = draw.choice(pair)
        if kind == "watch":
            self._watch.kill()
            time.sleep(draw.uniform(0, 3))
            self._watch.start()
            return "the watch is killed"
        if kind == "node":
            self._isolate(rank, draw.uniform(1, 6))
            return f"rank {rank} is cut off"
        if kind == "flap":
            self._flap(pair, draw)
        if kind == "slow":
            detours.slow_down(self._demo.fabric, pair, Fraction(_MBPS, 10))
            self._mends.append(lambda: detours.speed_up(self._demo.fabric, pair))
        if kind == "cut":
            detours.cut(self._demo.fabric, pair)
            self._mends.append(lambda: self._mend(pair))
        return f"{kind} {pair[0]}-{pair[1]}"

    def mend(self) -> None:
        """Mend all that is broken."""
        while self._mends:
            self._mends.pop()()

    def _mend(self, pair: tuple[int, int]) -> None:
        detours.mend(self._demo.fabric, pair, self._demo.topology)

    def _flap(self, pair: tuple[int, int], draw: random.Random) -> None:
        for _ in range(3):
            detours.cut(self._demo.fabric, pair)
            time.sleep(draw.uniform(0.1, 1.5))
            self._mend(pair)
            time.sleep(draw.uniform(0.1, 1.5))

    def _isolate(self, rank: int, seconds: float) -> None:
        cables = [pair for pair in self._pairs if rank in pair]
        for pair in cables:
            detours.cut(self._demo.fabric, pair)
        time.sleep(seconds)
        for pair in cables:
            self._mend(pair)


def main() -> int:
    """Run the sequences; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--canary-s", type=float, default=3, help="limit of comparisons before a table is published")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the fabric comes down all the same
    topology = parse_topology(options.topology)
    fabric = bring_up(topology, Fraction(_MBPS), f"faults-{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"canary": {"seconds": options.canary_s}}
            limit_s = _SEQUENCE_LIMIT_S * options.count
            demo = WatchDemo(topology, fabric, Path(folder), _MBPS, limit_s, settings)
            record = _sequences(demo, options)
    finally:
        take_down(fabric)
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return 1 if record["wrong_sums"] or record["steps_lost"] else 0


def _sequences(demo: WatchDemo, options: argparse.Namespace) -> Json:
    record: Json = {}
    log, stop = demo.fresh_files()
    until_s = time.monotonic() + 60 * options.minutes
    last = options.first + options.count - 1
    with ExitStack() as watches:
        watch = WatchStarts(demo, watches)
        watch.start()
        healthy = str(watch.started[0].events[-1]["table"])
        faults = Faults(demo, watch)
        with demo.training(log, stop):
            wait_until("the job trains", lambda: len(read_steps(log)) > 2)
            for number in range(options.first, last + 1):
                is_last = number == last or time.monotonic() > until_s
                mended = _one_sequence(number, options.seed, faults, log)
                wait_until("the job goes on", lambda: len(read_steps(log)) > mended + _STEPS_AFTER)  # noqa: B023
                if is_last or (number + 1 - options.first) % _TABLE_EVERY == 0:
                    wait_until("all links are healthy", watch.are_links_healthy)
                    wait_until("the healthy table runs again", lambda: read_steps(log)[-1]["table"] == healthy)
                record = _record(read_steps(log), number + 1 - options.first, watch.events)
                sys.stderr.write(f"{json.dumps(record)}\n")
                if is_last:
                    break
    return record


def _one_sequence(number: int, seed: int, faults: Faults, log: Path) -> int:
    """Cause three faults and mend all; return how many steps the job had made by then."""
    draw = random.Random(f"{seed}/{number}")
    for _ in range(3):
        sys.stderr.write(f"sequence {number}: {faults.cause(draw)}\n")
        time.sleep(draw.uniform(0.1, 6))
    faults.mend()
    return len(read_steps(log))


def _record(steps: list[Json], sequences: int, events: list[Json]) -> Json:
    """Return the figures of the sequences so far."""
    compared_s = [event["stages"]["compared"] for event in events if event["event"] == "publish"]
    return {
        "sequences": sequences,
        "steps": len(steps),
        "tables_published": len(compared_s),
        "longest_comparison_s": max(compared_s),
        "tables_taken": sum(before["table"] != after["table"] for before, after in pairwise(steps)),
        "wrong_sums": sum(step["wrong"] > 0 for step in steps),
        "steps_lost": max(step["step"] for step in steps) + 1 - len(steps),
        "longest_step_s": max(after["end_s"] - before["end_s"] for before, after in pairwise(steps)),
        "load_average": load_average(),
    }


if __name__ == "__main__":
    sys.exit(main())
