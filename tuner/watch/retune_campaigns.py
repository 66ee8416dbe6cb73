"""Campaigns that a watch launches itself: their file, the process that runs one, and what it found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chorale.job.table.model import ANY_DTYPE, Table, TableProgram
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.config.campaign_file import load_campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.reports.table_sources import table_of_campaign
from chorale.tuner.reports.table_writing import JobGroup
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.replanning import TunedProgram, table_entry

_LOWEST_PRIORITY = "19"
_END_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class CampaignOrder:
    """A collective and the sizes at which it is to be tuned anew."""

    collective: str
    sizes_bytes: tuple[int, ...]


class CampaignProcess:
    """`chorale tune` at the lowest priority, with a cluster of its own on this machine."""

    def __init__(self, file: Path, home: Path, *, resume: bool) -> None:
        """file: of the campaign; what it prints goes to files of the same name beside it"""
        command = ["nice", "-n", _LOWEST_PRIORITY, sys.executable, "-m", "chorale", "--quiet", "tune", str(file)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment["CHORALE_HOME"] = str(home)
        with file.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*command, "--json", *(["--resume"] if resume else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._log = file.with_suffix(".log")

    def poll(self) -> int | None:
        """Return the exit code, None as long as it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Have it end soon; what it has measured is kept."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End it. Safe to call twice."""
        self.interrupt()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """Return the last line that it has written."""
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "nothing was said")


@dataclass(frozen=True, slots=True)
class WatchCampaigns:
    """Writes and runs campaigns of one watch, and reads what they found.

    fabric: name of the emulated fabric; folder: of the watch; start: of the process of a campaign's file
    """

    config: WatchConfig
    fabric: str
    home: Home
    folder: Path
    start: Callable[..., CampaignProcess] = CampaignProcess

    @property
    def name(self) -> str:
        """The name of the campaigns, which are launches of one."""
        return f"{self.config.name}-retune"[-64:]

    def check(self) -> None:
        """Raise InvalidInput for keys that no campaign has."""
        if self.config.retune.hours:
            self._write(CampaignOrder(self.config.collectives[0], tuple(self.config.sizes)), ["ring"])

    def begin(self, order: CampaignOrder, present: Table) -> CampaignProcess:
        """Launch a campaign whose baselines are the programs of `present`, warm from the registry."""
        programs = {
            entry.digest: entry
            for size in order.sizes_bytes
            if (entry := table_entry(present, order.collective, size)) is not None
        }
        baselines = []
        for digest, entry in sorted(programs.items())[:10]:
            path = self._file.with_name(f"present-{digest[:12]}.xml")
            write_file(path, entry.text)
            baselines.append(str(path))
        self._write(order, baselines or ["ring"])
        return self.start(self._file, self.home.root, resume=False)

    def resume(self) -> CampaignProcess:
        """Go on with the campaign that was interrupted."""
        return self.start(self._file, self.home.root, resume=True)

    def tuned_programs(self, order: CampaignOrder, present: Table) -> Mapping[tuple[str, int], TunedProgram]:
        """Return what the newest launch found to be fastest at each size of `order`: a program, or the present one.

        CheckFailed where nothing was measured.
        """
        table = table_of_campaign(self.home, self.name, JobGroup(), (ANY_DTYPE,), beyond=True, with_mlflow=False)
        found = {}
        for size in order.sizes_bytes:
            entry = next((each for each in table.entries if each.covers(size)), None)
            if entry is None:
                continue
            measured = _measured_at(entry.measured or {}, size)
            program = table.programs[entry.program] if entry.program else _baseline(present, measured)
            if program is not None:
                found[order.collective, size] = TunedProgram(program, measured)
        if not found:
            raise CheckFailed("a campaign must find a program", f"{self.name}: none", "see its launch")
        return found

    @property
    def _file(self) -> Path:
        return self.folder / "retune" / "campaign.yaml"

    def _write(self, order: CampaignOrder, baselines: list[str]) -> None:
        section = self.config.retune
        uri = self.config.publish.mlflow_uri
        document = {
            "budget": {"trials": section.trials, "minutes": section.minutes},
            "search": {"methods": self.config.methods},
            **({"tracking": {"mlflow_uri": uri}} if uri else {}),
            **section.campaign,
            "name": self.name,
            "topology": self.config.topology,
            "collective": order.collective,
            "sizes": list(order.sizes_bytes),
            "runner": {"kind": "local", "fabric": self.fabric, "where": "fabric"},
            "baselines": baselines,
            "warm_start": True,
        }
        self._file.parent.mkdir(exist_ok=True)
        write_file(self._file, yaml.safe_dump(document).encode())
        try:
            load_campaign(str(self._file))
        except InvalidInput as error:
            raise InvalidInput(f"`retune.campaign`: {error.rule}", error.value, error.way_out) from error


def _measured_at(measured: Mapping[str, Any], size_bytes: int) -> dict[str, Any]:
    """Return what was measured at the size next to `size_bytes`, in the form that tables have."""
    rows = sorted(measured.get("sizes", []), key=lambda row: abs(row["size_bytes"] - size_bytes))
    return {**measured, "sizes": rows[:1]}


def _baseline(present: Table, measured: Mapping[str, Any]) -> TableProgram | None:
    """Return the program of `present` that was the fastest baseline; campaigns name files by their digests."""
    name = str(measured["sizes"][0]["baseline"]) if measured["sizes"] else ""
    prefix = name.rpartition(":")[2]
    return next((each for each in present.programs.values() if prefix and each.digest.startswith(prefix)), None)
