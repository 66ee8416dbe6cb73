"""Runs measurements on a temporary emulated fabric, or with another runner if no fabric can be brought up."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.fabric import take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import Home

_PATIENCE_S = 600.0
_NAME = "experiment-"
"""Prefix of fabric names, followed by the id of the process that brings the fabric up."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The outcome of a measurement, and the runner that was used.

    runner:       name of the runner that executed the request
    substitution: what was missing and what was used instead; None if nothing was missing
    """

    outcome: Outcome
    runner: str
    substitution: str | None


def measure_live(request: RunRequest, link_mbps: int) -> LiveRun:
    """Run `request` with oneCCL on an emulated fabric or, if that is not possible, with MPI or the local runner.

    The fabric is removed at the end of this call. The machine is locked during the measurement.

    Raises:
        Unavailable: if another process holds the lock for ten minutes.
    """
    missing: list[str] = []
    with _machine() as root:
        try:
            with _fabric(request.topology, link_mbps) as fabric:
                for runner in ("oneccl", "mpi"):
                    outcome = _submit(runner, {"fabric": fabric}, root, request)
                    if not (isinstance(outcome, RunFailure) and outcome.kind == FailureKind.UNAVAILABLE):
                        return LiveRun(outcome, f"{runner} on a fabric", "; ".join(missing) or None)
                    missing.append(f"no {runner}: {outcome.message}")
        except (InvalidInput, Unavailable) as error:
            missing.append(f"no fabric: {error}")
        outcome = _submit("local", {"link_mbps": link_mbps}, root, request)
    return LiveRun(outcome, "local", f"processes over paced sockets stand for a fabric; {'; '.join(missing)}")


def measure_on_fabric(
    request: RunRequest, link_mbps: int, runner: str, options: Mapping[str, str] | None = None
) -> LiveRun:
    """Measure `request` with `runner` on a new fabric, together with all algorithms of the runner's library.

    Raises the same errors as `measure_live`, and InvalidInput or Unavailable if no such fabric can be brought up.
    """
    collective = next(iter(request.programs.values())).collective.name.value
    with _machine() as root, _fabric(request.topology, link_mbps) as fabric:
        chosen = {"fabric": fabric, "where": "fabric", **(options or {})}
        with closing(create_runner(runner, chosen, root)) as running:
            outcome = running.submit(replace(request, library=running.library(collective)))
    return LiveRun(outcome, f"{runner} on a fabric", None)


@contextmanager
def _machine() -> Iterator[Path]:
    """Lock the machine for measurements, and yield the data folder."""
    home = Home.from_environment()
    root = home.create(home.root)
    with exclusive(machine_lock(), _PATIENCE_S):
        yield root


@contextmanager
def _fabric(topology: Topology, link_mbps: int) -> Iterator[str]:
    """Yield the name of a new fabric. Raises InvalidInput or Unavailable if this machine cannot emulate `topology`."""
    fabric = bring_up(topology, Fraction(link_mbps), f"{_NAME}{os.getpid()}")
    try:
        yield fabric.name
    finally:
        take_down(fabric)


def _submit(runner: str, options: Mapping[str, Any], home: Path, request: RunRequest) -> Outcome:
    with closing(create_runner(runner, options, home)) as running:
        return running.submit(request)


@dataclass(frozen=True, slots=True)
class LiveTimes:
    """Shortest times of a program in microseconds, in the order of the sizes.

    The shortest time is used because disturbances can only add time.

    where:        runner that measured the times
    substitution: see `LiveRun`
    """

    us: tuple[float, ...]
    where: str
    substitution: str | None


def measure_times(
    topology: Topology, programs: Mapping[str, Program], sizes_bytes: Sequence[int], link_mbps: int, repeats: int
) -> dict[str, LiveTimes]:
    """Return name -> times of each of `programs`, on links of `link_mbps`. Raises CheckFailed if the run fails."""
    request = RunRequest(topology, programs, tuple(sizes_bytes), repeats, timeout_s=_TIMEOUT_S)
    run = measure_live(request, link_mbps)
    if isinstance(run.outcome, RunFailure):
        value = f"{run.outcome.kind} on {topology.spec}: {run.outcome.message}"
        raise CheckFailed("a live run must give right results", value, "run it again when the machine is less busy")
    return {
        name: LiveTimes(tuple(min(size.times_s) * 1e6 for size in sizes), run.runner, run.substitution)
        for name, sizes in run.outcome.results.items()
    }
