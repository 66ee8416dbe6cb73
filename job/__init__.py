"""Run the programs of a tuning table in PyTorch, Ray and MPI jobs, and report which of them ran."""

from typing import Any

from chorale.job.report import JobReport

_report = JobReport()


def current_report() -> JobReport:
    """Return the report that counts this process's calls."""
    return _report


def report() -> dict[str, Any]:
    """Return the counts of the calls that this process has made so far, in the format of the CHORALE_REPORT file."""
    return _report.to_json()
