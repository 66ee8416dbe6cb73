"""`make demo-job`: record what a training job calls, tune that on its network, and train again with the table."""

from __future__ import annotations

import argparse
import json
import os
import sys
from fractions import Fraction
from pathlib import Path

from chorale.experiments.job_demo.demo import Demo, Kind, step_picture
from chorale.runners.fabric.fabric import take_down
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home

SPEC = "hypercube:3"
_PATIENCE_S = 600.0


def main(arguments: list[str]) -> int:
    """Run the demo and write its figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-job", description=__doc__)
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6, help="of training, with each backend")
    parser.add_argument("--repeats", type=int, default=7, help="of each collective")
    parser.add_argument("--only", choices=[kind.value for kind in Kind], help="only one kind of training")
    parser.add_argument("--picture", type=Path, help="where to draw the step times (.svg)")
    options = parser.parse_args(arguments)
    try:
        document = run(options)
    except ChoraleError as error:
        sys.stderr.write(f"demo-job: {error}\n")
        return error.exit_code
    if options.picture is not None:
        step_picture(document, options.picture)
    return 0


def run(options: argparse.Namespace) -> dict[str, object]:
    """Return the figures, which are in `demo-job.json` of the data folder then."""
    home = Home.from_environment()
    root = home.create(home.root)
    topology = parse_topology(SPEC)
    kinds = [Kind(options.only)] if options.only else list(Kind)
    with exclusive(machine_lock(), _PATIENCE_S):
        fabric = bring_up_tested(topology, Fraction(options.link_mbps), f"demo-job-{os.getpid()}")
        try:
            demo = Demo(topology, fabric, root, options.steps, options.repeats)
            parts = {kind.value: demo.show(kind) for kind in kinds}
        finally:
            take_down(fabric)
    first, *others = parts
    facts = {"network": SPEC, "link_mbps": options.link_mbps, "training": first}
    document: dict[str, object] = {**facts, **parts[first], **{name: parts[name] for name in others}}
    path = root / "demo-job.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"figures: {path}")
    return document


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
