"""In the job: programs of a tuning table run in PyTorch, Ray and MPI jobs, and a report says which did."""

from typing import Any

from chorale.job.report import JobReport

_report = JobReport()


def current_report() -> JobReport:
    """Return where this process counts what it runs."""
    return _report


def report() -> dict[str, Any]:
    """Return what this process has run so far, as CHORALE_REPORT writes it."""
    return _report.to_json()
