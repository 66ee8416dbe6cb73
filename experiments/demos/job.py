"""`make demo-job`: record a training job's collectives, tune them on its network, and train with the table.

The demo runs the commands of the page "From a network to a faster training job".
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from chorale.experiments.demos.ranks import run_ranks
from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import Home

SPEC = "hypercube:3"
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "demo_job" / "train.py"
SHARDINGS = ("ddp", "fsdp2")
_SEARCH = "{methods: [bfb, swing-latency, recursive-doubling], chunks: [null, 2]}"
_LIMIT_S, _PATIENCE_S = 240.0, 600.0
_RECORDED_STEPS = 2


@dataclass(frozen=True, slots=True)
class Demo:
    """Runs the demo on an emulated fabric, with at least 2 training steps. Writes records and tables to `home`."""

    topology: Topology
    fabric: EmulatedFabric
    home: Path
    steps: int

    def show(self, sharding: str) -> dict[str, Any]:
        """Record a job, tune it and train again; return its table, its campaigns and a `comparison` with Gloo."""
        record, table = (self.home / f"demo-job-{sharding}.{suffix}" for suffix in ("record.json", "table"))
        self._train(sharding, "chorale", _RECORDED_STEPS, CHORALE_RECORD=str(record))
        campaigns = self._tune(record)
        chorale("table", "merge", *self._tables(campaigns), "-o", str(table))
        with exclusive(machine_lock(), _PATIENCE_S):
            gloo = self._train(sharding, "gloo", self.steps)
            ours = self._train(sharding, "chorale", self.steps, CHORALE_TABLE=str(table))
        return {"table": str(table), "campaigns": campaigns, **comparison(gloo, ours)}

    def _tune(self, record: Path) -> list[dict[str, Any]]:
        """Run a campaign for each recorded collective on the fabric; return the documents of `chorale tune --json`."""
        settings = [
            f"runner={{kind: local, where: fabric, fabric: {self.fabric.name}}}",
            f"search={_SEARCH}",
            *("repeats=3", "final.launches=4", "final.minutes=1"),
        ]
        options = [word for setting in settings for word in ("--set", setting)]
        written = chorale("tune", "--from-record", str(record), "--topology", SPEC, *options, "--json")
        return [campaign for campaign in json.loads(written)["campaigns"] if campaign is not None]

    def _tables(self, campaigns: list[dict[str, Any]]) -> list[str]:
        files = []
        for campaign in campaigns:
            name = campaign["campaign"]
            files.append(str(self.home / f"{name}.table"))
            chorale("table", "write", "--campaign", name, "--dtypes", "any", "--beyond", "-o", files[-1])
        return files

    def _train(self, sharding: str, backend: str, steps: int, **environment: str) -> dict[str, Any]:
        """Run `train.py` on all ranks and return its JSON output, with the job's report under the key `report`."""
        sys.stderr.write(f"training ({sharding}) with {backend} {environment or ''}\n")
        with tempfile.TemporaryDirectory() as folder:
            output, report = Path(folder) / "training.json", Path(folder) / "report.json"
            options = ["--backend", backend, "--sharding", sharding, "--steps", str(steps), "--output", str(output)]
            variables = {**environment, "CHORALE_REPORT": str(report)}
            run_ranks(self.topology, self.fabric, SCRIPT, options, _LIMIT_S, variables)
            return {
                **json.loads(output.read_text()),
                "report": json.loads(report.read_text()) if backend != "gloo" else {},
            }


def chorale(*words: str) -> str:
    """Run a command of this installation and return its standard output. Raises CheckFailed if it fails."""
    sys.stderr.write(f"chorale {' '.join(words)}\n")
    done = subprocess.run([sys.executable, "-m", "chorale", *words], stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise CheckFailed("a command of the demo must succeed", " ".join(words), "see its output above")
    return done.stdout


def comparison(gloo: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return median step times (without first steps), whether losses are equal, and the programs and fallbacks used."""
    trainings = {"gloo": gloo, "chorale": ours}
    return {
        "step_s": {name: statistics.median(training["step_s"][1:]) for name, training in trainings.items()},
        "losses_equal": gloo["losses"] == ours["losses"],
        "programs": ours["report"]["programs"],
        "fallbacks": ours["report"]["fallbacks"],
    }


def main(arguments: list[str]) -> int:
    """Run the demo and write its results to `demo-job.json` in the data folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-job", description=__doc__)
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6, help="training steps with each backend")
    parser.add_argument("--only", choices=SHARDINGS, help="train with one kind of sharding only")
    options = parser.parse_args(arguments)
    topology, home = parse_topology(SPEC), Home.from_environment()
    try:
        root = home.create(home.root)
        fabric = bring_up(topology, Fraction(options.link_mbps), f"demo-job-{os.getpid()}")
        try:
            demo = Demo(topology, fabric, root, options.steps)
            parts = {name: demo.show(name) for name in ([options.only] if options.only else SHARDINGS)}
        finally:
            take_down(fabric)
    except ChoraleError as error:
        sys.stderr.write(f"demo-job: {error}\n")
        return error.exit_code
    path = root / "demo-job.json"
    path.write_text(json.dumps({"network": SPEC, "link_mbps": options.link_mbps, **parts}, indent=1) + "\n")
    for name, part in parts.items():
        seconds = part["step_s"]
        print(f"{name}: a step takes {seconds['gloo']:.3g} s with gloo, {seconds['chorale']:.3g} s with the table")
    print(f"figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
