"""The analysis of a measurement, and its JSON."""

import pytest

from chorale.runners.api.base import Measurement, SizeMeasurement
from chorale.runners.measurement.precision import analyse

OWN = (2.0, 2.2, 2.4, 2.6, 2.8, 30.0)
REFERENCE = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
MEASUREMENT = Measurement(
    "drawn",
    {
        "own": (SizeMeasurement(4096, 4096, OWN, correct=True), SizeMeasurement(8192, 8192, OWN[:2], correct=True)),
        "library:x": (
            SizeMeasurement(4096, 4096, REFERENCE, correct=True),
            SizeMeasurement(8192, 8192, REFERENCE[:2], correct=True),
        ),
    },
)


def test_a_ratio_is_taken_repetition_by_repetition() -> None:
    large, small = analyse(MEASUREMENT, "own", "library:x")
    assert large.ratio is not None
    assert (large.ratio.median, large.ratio.low, large.ratio.high) == pytest.approx((2, 2, 20))
    assert large.ratio.confidence == 0.95
    assert small.ratio is not None
    assert small.ratio.confidence == 0.5


def test_json_names_the_reference_and_every_repetition_that_is_out_of_line() -> None:
    (found, _) = analyse(MEASUREMENT, "own", "library:x")
    assert found.to_json("library:x") == {
        "time_us_interval": [2e6, 30e6],
        "confidence": 0.95,
        "outliers": [5],
        "drift": {
            "relative_change": pytest.approx(0.5 / 1.25),
            "p_value": pytest.approx(2 / 720),
            "flagged": True,
        },
        "ratio_to_reference": {
            "reference": "library:x",
            "median": pytest.approx(2),
            "low": pytest.approx(2),
            "high": pytest.approx(20),
            "confidence": 0.95,
        },
    }


def test_without_a_reference_there_is_no_ratio_and_the_drift_is_its_own() -> None:
    (found, _) = analyse(MEASUREMENT, "own")
    assert found.ratio is None
    assert "ratio_to_reference" not in found.to_json(None)
    assert found.drift.relative_change == pytest.approx(0.2 * 5 / 2.5, rel=0.5)
