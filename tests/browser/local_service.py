"""Launches of the service inside the process of the tests; tests/integration/test_service.py has the real ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chorale.synth.errors import CheckFailed
from chorale.tuner.config.campaign import Campaign, make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.tune import LaunchProgress, tune
from chorale.tuner.service.campaigns import STORED
from chorale.tuner.trials.records import TrialRecord

END_S = 120.0


def _silent(budget: int, recorded: Sequence[TrialRecord]) -> LaunchProgress:
    return LaunchProgress(Console(quiet=True), budget, recorded)


class ThreadLaunches:
    """Stands in for `DetachedLaunches`: a thread for each launch; launches that are long are not stopped."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._errors: dict[str, str] = {}

    def start(self, campaign: Mapping[str, Any], home: Path, resume: bool) -> None:
        name = campaign["name"]
        if self.state(name)[0] == "running":
            raise CheckFailed("is running already", name, "stop it first")
        self._errors.pop(name, None)
        self._threads[name] = threading.Thread(target=self._run, args=(dict(campaign), home, resume), daemon=True)
        self._threads[name].start()

    def state(self, name: str) -> tuple[str, str | None]:
        if name not in self._threads:
            return STORED, None
        error = self._errors.get(name)
        return "running" if self._threads[name].is_alive() else "failed" if error else "ended", error

    def stop(self, name: str) -> None:
        raise CheckFailed("a launch of tests ends by itself", name, "wait for it")

    def close(self) -> None:
        """Wait for all launches."""
        for thread in self._threads.values():
            thread.join(END_S)
            assert not thread.is_alive()

    def _run(self, document: dict[str, Any], home: Path, resume: bool) -> None:
        try:
            campaign = Campaign.model_validate(document)
            topology = load_topology(campaign.topology)
            make = make_workers(campaign, topology, home)
            tune(campaign, topology, Home(home), resume, make, _silent)
        except Exception as error:  # the page shows it
            self._errors[document["name"]] = str(error)
