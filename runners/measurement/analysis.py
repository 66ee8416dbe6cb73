"""What the times of a program say at one size, beside those of a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chorale.runners.api import Measurement, SizeMeasurement
from chorale.runners.measurement.drift import Drift, estimate_drift
from chorale.runners.measurement.goal import CONFIDENCE
from chorale.runners.measurement.interval import MedianInterval, median_interval, ratio_interval
from chorale.runners.measurement.outliers import find_outliers


@dataclass(frozen=True, slots=True)
class SizeAnalysis:
    """times:    interval of the median time, in seconds
    ratio:    interval of the time over the reference's, repetition by repetition; None without a reference
    outliers: repetitions far out of line; they are among those that count
    drift:    trend of the reference over the run, of the program itself without one
    """

    times: MedianInterval
    ratio: MedianInterval | None
    outliers: tuple[int, ...]
    drift: Drift

    def to_json(self, reference: str | None) -> dict[str, Any]:
        """Return the facts as JSON has them; `reference` is the name that people know it by."""
        facts: dict[str, Any] = {
            "time_us_interval": [self.times.low * 1e6, self.times.high * 1e6],
            "confidence": self.times.confidence,
            "outliers": list(self.outliers),
            "drift": {
                "relative_change": self.drift.relative_change,
                "p_value": self.drift.p_value,
                "flagged": self.drift.is_flagged,
            },
        }
        if self.ratio is not None:
            facts["ratio_to_reference"] = {
                "reference": reference,
                "median": self.ratio.median,
                "low": self.ratio.low,
                "high": self.ratio.high,
                "confidence": self.ratio.confidence,
            }
        return facts


def analyse(
    measurement: Measurement, name: str, reference: str | None = None, confidence: float = CONFIDENCE
) -> tuple[SizeAnalysis, ...]:
    """Return what `measurement` says about the result `name` at each size, in the order of the request.

    `reference` is the name of the result that it is compared with. CheckFailed where a reference takes no time.
    """
    own = measurement.results[name]
    if reference is None:
        return tuple(_of_size(one, None, confidence) for one in own)
    pairs = zip(own, measurement.results[reference], strict=True)
    return tuple(_of_size(one, other, confidence) for one, other in pairs)


def _of_size(own: SizeMeasurement, reference: SizeMeasurement | None, confidence: float) -> SizeAnalysis:
    ratio = None if reference is None else ratio_interval(own.times_s, reference.times_s, confidence)
    trend = estimate_drift(own.times_s if reference is None else reference.times_s)
    return SizeAnalysis(median_interval(own.times_s, confidence), ratio, find_outliers(own.times_s), trend)
