"""`make demo-watch`: DDP on an emulated hypercube, a fault, and what the watch does about it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction

from chorale.experiments.watch_demo.demo import Json, WatchDemo
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import take_down
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.runners.measurement.machine import load_average
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home

CABLE = (0, 1)


def cut(demo: WatchDemo, steps_before: int) -> Json:
    """A cable is cut."""
    return demo.run(lambda: detours.cut(demo.fabric, CABLE), steps_before)


def main(arguments: list[str], faults: Mapping[str, Callable[[WatchDemo, int], Json]] | None = None) -> int:
    """Run the demo and write its figures, into the data folder too; return the exit code.

    faults: that there are, by name
    """
    faults = faults or {"cut": cut}
    parser = argparse.ArgumentParser(prog="make demo-watch", description=__doc__)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="before the fault")
    parser.add_argument("--fault", choices=list(faults), default="cut")
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
            measured = faults[options.fault](demo, options.steps)
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
