"""Run the programs of a tuning table in PyTorch, Ray and MPI jobs, and report which of them ran."""

from typing import Any

from chorale.job.report import JobReport

_report = JobReport()


def current_report() -> JobReport:
    """Return the report that counts this process's calls."""
    return _report


def report() -> dict[str, Any]:
    """Return what this process has run so far, in the format of the file that CHORALE_REPORT names."""
    return _report.to_json()
