"""`make demo-watch`: DDP on an emulated hypercube, a fault, and what the watch does about it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from chorale.experiments.watch_demo.demo import Json, WatchDemo, has_enough, median_s, published, read_steps, wait_until
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import take_down
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.runners.measurement.machine import load_average
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home

_CABLE, _LOST_RANK = (0, 1), 3
_FLAP_S = 4.0
_COLLECTIVE_LIMIT_S = 20.0
"""A job that has lost a rank is to fail soon."""


def cut(demo: WatchDemo, steps_before: int) -> Json:
    """A cable is cut."""
    return demo.run(lambda: detours.cut(demo.fabric, _CABLE), steps_before)


def slow_down(demo: WatchDemo, steps_before: int) -> Json:
    """A cable has a tenth of its rate."""
    return demo.run(lambda: detours.slow_down(demo.fabric, _CABLE, Fraction(demo.link_mbps, 10)), steps_before)


def flap(demo: WatchDemo, steps_before: int) -> Json:
    """A cable is cut and mended four times, and is quiet then: no table comes and goes with it."""
    log, stop = demo.fresh_files()
    with demo.watching() as watch, demo.training(log, stop):
        wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
        fault_s = time.time()
        for _ in range(4):
            detours.cut(demo.fabric, _CABLE)
            time.sleep(_FLAP_S)
            detours.mend(demo.fabric, _CABLE, demo.topology)
            time.sleep(_FLAP_S)
        ended_s = time.time()
        wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
        healthy = (published(watch, 0.0) or {})["table"]
        wait_until("the healthy table is back", lambda: (published(watch, ended_s) or {}).get("table") == healthy)
        count = len(read_steps(log))
        wait_until("the job has trained on it", lambda: has_enough(read_steps(log)[count:], healthy))
        stop.touch()
    events = [event for event in watch.events if event["time_s"] > fault_s]
    flapping = [e["time_s"] - fault_s for e in events if e["event"] == "state" and e["to"] == "flapping"]
    return {
        **demo.figures(read_steps(log), watch.events, fault_s),
        "flapping_s": flapping[:1],
        "calm_s": (published(watch, ended_s) or {})["time_s"] - ended_s,
        "tables_published": sum(event["event"] == "publish" for event in events),
    }


def lose_a_node(demo: WatchDemo, steps_before: int) -> Json:
    """A rank is cut off; the job fails, goes on with the others on their table, and with all when the rank is back."""
    log, stop = demo.fresh_files()
    demo = replace(demo, collective_limit_s=_COLLECTIVE_LIMIT_S)
    everyone = range(demo.topology.compute_count)
    others = [rank for rank in everyone if rank != _LOST_RANK]
    pairs = zip(demo.topology.links.src.tolist(), demo.topology.links.dst.tolist(), strict=True)
    cables = sorted({(min(pair), max(pair)) for pair in pairs if _LOST_RANK in pair})
    with demo.watching() as watch:
        with demo.training(log, stop, everyone) as job:
            wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
            job.may_fail = True
            lost_s = time.time()
            for cable in cables:
                detours.cut(demo.fabric, cable)
            wait_until("a table for the others is published", lambda: bool(published(watch, lost_s, len(others))))
            wait_until("the job has failed within its limit", lambda: job.failure is not None)
            failed_s = time.time()
        stop.unlink()
        smaller = published(watch, lost_s, len(others)) or {}
        with demo.training(log, stop, others):
            wait_until("the others train", lambda: has_enough(read_steps(log), smaller["table"]))
            back_s = time.time()
            for cable in cables:
                detours.mend(demo.fabric, cable, demo.topology)
            wait_until("a table for all is published", lambda: bool(published(watch, back_s, len(everyone))))
        stop.unlink()
        whole = published(watch, back_s, len(everyone)) or {}
        began = len(read_steps(log))
        with demo.training(log, stop, everyone):
            wait_until("all train again", lambda: has_enough(read_steps(log)[began:], whole["table"]))
    steps = read_steps(log)
    return {
        **demo.figures(steps, watch.events, lost_s, smaller),
        "bandwidth_of_bound_between": None,  # no step ends between a failed job and the next one
        "job_failed_s": failed_s - lost_s,
        "back": {"published_s": whole["time_s"] - back_s, "first_step_s": steps[began]["end_s"] - back_s},
        "allreduce_s_back": median_s(steps[began + 1 :]),
    }


def kill_the_watch(demo: WatchDemo, steps_before: int) -> Json:
    """The watch is killed and starts again: it publishes nothing until a cable is cut, and then one table."""
    log, stop = demo.fresh_files()
    with demo.watching() as watch, demo.training(log, stop):
        wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
        os.kill(watch.process.pid, signal.SIGKILL)
        killed_s = time.time()
        watch.process.wait()
        steps_then = len(read_steps(log))
        wait_until("the job goes on without it", lambda: len(read_steps(log)) >= steps_then + 5)
        with demo.watching() as again:
            resumed_s = again.events[0]["time_s"]
            fault_s = time.time()
            detours.cut(demo.fabric, _CABLE)
            demo.wait_for_new_table(again, log, fault_s)
            stop.touch()
    events = [*watch.events, *again.events]
    tables = [event["table"] for event in events if event["event"] == "publish"]
    document = demo.figures(read_steps(log), events, fault_s)
    return {**document, "resumed_s": resumed_s - killed_s, "published_twice": len(tables) - len(set(tables))}


FAULTS: Mapping[str, Callable[[WatchDemo, int], Json]] = {
    "cut": cut,
    "slow": slow_down,
    "flap": flap,
    "node": lose_a_node,
    "watch": kill_the_watch,
}


def main(arguments: list[str]) -> int:
    """Run the demo and write its figures, into the data folder too; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-watch", description=__doc__)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="before the fault")
    parser.add_argument("--fault", choices=list(FAULTS), default="cut")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the fabric comes down all the same
    try:
        home = Home.from_environment()
        folder = home.create(home.root) / "demo-watch"
        folder.mkdir(exist_ok=True)
        topology = parse_topology(options.topology)
        fabric = bring_up_tested(topology, Fraction(options.link_mbps), f"demo-watch-{os.getpid()}")
        try:
            demo = WatchDemo(topology, fabric, folder, options.link_mbps)
            measured = FAULTS[options.fault](demo, options.steps)
        finally:
            take_down(fabric)
    except ChoraleError as error:
        sys.stderr.write(f"demo-watch: {error}\n")
        return error.exit_code
    facts = {"network": options.topology, "link_mbps": options.link_mbps, "fault": options.fault}
    text = json.dumps({**facts, **measured, "load_average": load_average()}, indent=1)
    name = "demo-watch.json" if options.fault == "cut" else f"demo-watch-{options.fault}.json"
    (home.root / name).write_text(f"{text}\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
