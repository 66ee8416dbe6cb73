"""Launches of the service inside the process of the tests; tests/integration/test_service.py has the real ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState
from chorale.tuner.service.campaigns import STORED
from tests.waiting import until

END_S = 120.0


class ThreadLaunches:
    """Stands in for `DetachedLaunches`: what lives in an actor there is an object of this process here."""

    def __init__(self) -> None:
        self._launches: dict[str, DetachedLaunch] = {}

    def start(self, campaign: Mapping[str, Any], home: Path, resume: bool) -> None:
        name = campaign["name"]
        if self.state(name)[0] == LaunchState.RUNNING.value:
            raise CheckFailed("is running already", name, "stop it first")
        self._launches[name] = DetachedLaunch(campaign, home, None if resume else uuid.uuid4().hex)

    def state(self, name: str) -> tuple[str, str | None]:
        if name not in self._launches:
            return STORED, None
        status = self._launches[name].status(0)
        return status.state.value, None if status.error is None else str(status.error)

    def stop(self, name: str) -> None:
        self._launches[name].stop()

    def close(self) -> None:
        """Wait for all launches."""
        for name in self._launches:
            until(lambda name=name: self.state(name)[0] != LaunchState.RUNNING.value, END_S)
