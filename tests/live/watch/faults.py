"""Faults while a job trains: `python -m tests.live.watch.faults --fault flap`."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from chorale.runners.fabric import detours
from tests.live.watch.demo import (
    CABLE,
    Json,
    WatchDemo,
    cut,
    has_enough,
    main,
    median_s,
    published,
    read_steps,
    wait_until,
)

_LOST_RANK = 3
_FLAP_S = 4.0
_COLLECTIVE_LIMIT_S = 20.0
"""A job that has lost a rank is to fail soon."""


def flap(demo: WatchDemo, steps_before: int) -> Json:
    """A cable is cut and mended four times, and is quiet then: no table comes and goes with it."""
    log, stop = demo.fresh_files()
    with demo.watching() as watch, demo.training(log, stop):
        wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
        fault_s = time.time()
        for _ in range(4):
            detours.cut(demo.fabric, CABLE)
            time.sleep(_FLAP_S)
            detours.mend(demo.fabric, CABLE, demo.topology)
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
            detours.cut(demo.fabric, CABLE)
            demo.wait_for_new_table(again, log, fault_s)
            stop.touch()
    events = [*watch.events, *again.events]
    tables = [event["table"] for event in events if event["event"] == "publish"]
    document = demo.figures(read_steps(log), events, fault_s)
    return {**document, "resumed_s": resumed_s - killed_s, "published_twice": len(tables) - len(set(tables))}


FAULTS: Mapping[str, Callable[[WatchDemo, int], Json]] = {
    "cut": cut,
    "flap": flap,
    "node": lose_a_node,
    "watch": kill_the_watch,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], FAULTS))
