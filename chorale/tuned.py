"""What `chorale.tune` returns: the answer, the table for jobs, the study and every trial."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import Table
from chorale.runners.api.units import format_size
from chorale.synth.errors import CheckFailed
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.plots.picture import Picture
from chorale.tuner.reports.quantities import seconds_text
from chorale.tuner.reports.table_sources import MEASURED_DTYPE, table_of_campaign
from chorale.tuner.reports.table_writing import JobGroup
from chorale.tuner.reports.tuning import tune_document
from chorale.tuner.trials.records import CompleteTrial

if TYPE_CHECKING:
    from optuna.study import Study
    from pandas import DataFrame


class TuningResult(TuneReport):
    """The results of a launch; what was measured stays in the data folder."""

    _home: Home
    _study: Study | None

    @staticmethod
    def of(report: TuneReport, home: Home, study: Study | None) -> TuningResult:
        """Return `report` with the study that chose its trials, and the data folder `home` that it lies in."""
        result = object.__new__(TuningResult)
        for name in TuneReport.__slots__:
            object.__setattr__(result, name, getattr(report, name))
        result.__dict__.update(_home=home, _study=study)
        return result

    @property
    def name(self) -> str:
        """The campaign's name."""
        return str(self.launch.campaign["name"])

    @cached_property
    def best(self) -> Mapping[int, Mapping[str, Any]]:
        """What to run by size in bytes: an entry of `best` of `chorale tune --json` each."""
        return {row["size_bytes"]: row for row in tune_document(self)["best"]}

    @cached_property
    def table(self) -> Table:
        """The tuning table for jobs, every program checked again. CheckFailed where nothing was measured."""
        return table_of_campaign(self._home, self.name, JobGroup(None, None), (MEASURED_DTYPE,), False)

    def save_table(self, path: str | Path) -> Path:
        """Write the tuning table to the file that CHORALE_TABLE names to jobs; return its path."""
        write_file(str(path), table_bytes(self.table))
        return Path(path)

    @property
    def study(self) -> Study:
        """The Optuna study of the search. CheckFailed where no trial was chosen by it."""
        if self._study is None:
            way_out = "start it anew, or with more trials"
            raise CheckFailed("a launch must have had trials to have a study", self.name, way_out)
        return self._study

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with a row for each trial and size: parameters, state, microseconds and speed-up."""
        import pandas as pd  # noqa: PLC0415 - MLflow brings it, and it takes half a second

        final = {ranked.trial.number: ranked.sizes for ranked in self.ranked_trials}
        rows: list[dict[str, Any]] = []
        for trial in self.trials:
            facts = {"trial": trial.number, "state": trial.state, **trial.candidate.parameters}
            if not isinstance(trial, CompleteTrial):
                rows.append(facts)
                continue
            for size in final.get(trial.number, trial.sizes):  # of equal programs the final comparison has one
                measured = {"time_us": size.median_s * 1e6, "speedup": size.speedup}
                rows.append({**facts, "size_bytes": size.size_bytes, **measured})
        return pd.DataFrame(sorted(rows, key=lambda row: (row["trial"], row.get("size_bytes", 0))))

    def plot(self) -> Picture:
        """Return a drawing of the best programs' goodput by size beside that of the baseline."""
        from chorale.tuner.plots.charts import plot_goodput  # noqa: PLC0415 (matplotlib is slow)

        series = {
            name: [
                {"size_bytes": size, "goodput_gbit_per_s": size * 8e-3 / row[key]} for size, row in self.best.items()
            ]
            for name, key in (("best", "time_us"), ("baseline", "baseline_time_us"))
        }
        return Picture(lambda path: plot_goodput(self._title, series, path))

    @property
    def _title(self) -> str:
        campaign = self.launch.campaign
        return f"{self.name}: {campaign['collective']} on {campaign['topology']}"

    def _texts(self) -> dict[str, str]:
        return {
            format_size(size): f"{_program(row)}, {seconds_text(row['time_us'] / 1e6)}, "
            f"{row['speedup_vs_baseline']:.2f}× as fast as {row['baseline']}"
            for size, row in self.best.items()
        }

    def __repr__(self) -> str:
        answer = "; ".join(f"{size}: {text}" for size, text in self._texts().items())
        return f"<{self._title}, {len(self.trials)} trials; {answer or 'nothing was measured'}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{size}</th><td>{escape(text)}</td></tr>" for size, text in self._texts().items())
        return f"<table><caption>{escape(self._title)}</caption>{rows}</table>"


def _program(row: Mapping[str, Any]) -> str:
    return str(row["parameters"]["method"]) if row["parameters"] else str(row["baseline"])
