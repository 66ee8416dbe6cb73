"""Run the programs of a tuning table in PyTorch, Ray and MPI jobs, and report which of them ran."""

from typing import Any

from chorale.job.report import JobReport

_report = JobReport()


def current_report() -> JobReport:
    """Return the report in which this process counts its calls."""
    return _report


def report() -> dict[str, Any]:
    """Return what this process has run so far, as CHORALE_REPORT writes it."""
    return _report.to_json()
