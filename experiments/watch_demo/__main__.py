"""`make demo-watch`: DDP on an emulated hypercube, a cable that is cut, and what the watch does about it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from chorale.experiments.watch_demo.demo import WatchDemo
from chorale.experiments.watch_demo.scenarios import SCENARIOS
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.runners.measurement.machine import load_average
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home

_CABLE = (0, 1)
_FAULTS = (
    "slow: a tenth of the rate; node: a rank is cut off; watch: it is killed; mlflow: its server is away; "
    "ray: its head is killed and starts again; retune: none, but times of jobs that part from the prediction"
)


def main(arguments: list[str]) -> int:
    """Run the demo and write its figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-watch", description=__doc__)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="before the fault")
    parser.add_argument("--fault", choices=["cut", "slow", *SCENARIOS], default="cut", help=_FAULTS)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the fabric comes down all the same
    try:
        document = run(options)
    except ChoraleError as error:
        sys.stderr.write(f"demo-watch: {error}\n")
        return error.exit_code
    print(json.dumps(document, indent=1))
    return 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures, which are in `demo-watch.json` of the data folder then."""
    home = Home.from_environment()
    folder = home.create(home.root) / "demo-watch"
    folder.mkdir(exist_ok=True)
    topology = parse_topology(options.topology)
    fabric = bring_up_tested(topology, Fraction(options.link_mbps), f"demo-watch-{os.getpid()}")
    try:
        demo = WatchDemo(topology, fabric, folder, options.link_mbps)
        if options.fault in SCENARIOS:
            measured = SCENARIOS[options.fault](demo, options.steps)
        else:
            measured = demo.run(_fault(options, fabric), options.steps)
    finally:
        take_down(fabric)
    facts = {"network": options.topology, "link_mbps": options.link_mbps, "fault": options.fault}
    document = {**facts, **measured, "load_average": load_average()}
    name = "demo-watch.json" if options.fault == "cut" else f"demo-watch-{options.fault}.json"
    (home.root / name).write_text(json.dumps(document, indent=1) + "\n")
    return document


def _fault(options: argparse.Namespace, fabric: EmulatedFabric) -> Callable[[], None]:
    if options.fault == "cut":
        return lambda: detours.cut(fabric, _CABLE)
    return lambda: detours.slow_down(fabric, _CABLE, Fraction(options.link_mbps, 10))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
