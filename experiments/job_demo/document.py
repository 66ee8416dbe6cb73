"""What the demo writes: times by size and step, and whether the losses are the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.experiments.job_demo.programs import Measured
from chorale.runners.api.base import bus_factor

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Training:
    """One run of the training script: seconds of each step, losses of each rank, and the job's report if it has one."""

    backend: str
    step_s: Sequence[float]
    losses: Sequence[Sequence[float]]
    report: Json | None = None

    @property
    def median_step_s(self) -> float:
        """Median without the first step, in which buffers are made."""
        return statistics.median(self.step_s[1:])


def size_rows(times: Sequence[Json], measured: Mapping[str, Measured], ranks: int) -> Iterator[Json]:
    """Yield a row for each recorded size: medians in a job with Gloo and with Chorale, by turns, and the best that MPI
    and oneCCL have, by their runners.

    times: of `collective_times.py`; measured: by collective; `library_us` is None where neither can be had
    """
    for row in times:
        gloo_us, chorale_us = (statistics.median(row["seconds"][name]) * 1e6 for name in ("gloo", "chorale"))
        size_bytes, collective = row["size_bytes"], row["collective"]
        library = measured[collective].best_library(size_bytes, ("mpi", "oneccl"))
        moved = size_bytes * bus_factor(collective, ranks) / 1e3  # kilobytes; over microseconds that is GB/s
        yield {
            "collective": collective,
            "size_bytes": size_bytes,
            "gloo_us": gloo_us,
            "library_us": library and library[1],
            "chorale_us": chorale_us,
            "library": library and library[0],
            "gloo_busbw_gb_per_s": moved / gloo_us,
            "chorale_busbw_gb_per_s": moved / chorale_us,
        }


def part(trainings: Mapping[str, Training], rows: Sequence[Json]) -> Json:
    """Return the figures of one kind of training: DDP or FSDP2."""
    gloo, chorale = trainings["gloo"], trainings["chorale"]
    assert chorale.report is not None
    return {
        "sizes": list(rows),
        "step_s": {name: training.median_step_s for name, training in trainings.items()},
        "steps_s": {name: list(training.step_s) for name, training in trainings.items()},
        "losses_equal": gloo.losses == chorale.losses,
        "largest_loss_difference": max(
            abs(one - other)
            for of_gloo, of_chorale in zip(gloo.losses, chorale.losses, strict=True)
            for one, other in zip(of_gloo, of_chorale, strict=True)
        ),
        "fallbacks": chorale.report["fallbacks"],
        "programs": chorale.report["programs"],
        "communication_speedup": sum(row["gloo_us"] for row in rows) / sum(row["chorale_us"] for row in rows),
        "slower_at": [row["size_bytes"] for row in rows if row["chorale_us"] > row["gloo_us"]],
    }
