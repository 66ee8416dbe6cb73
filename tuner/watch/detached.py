"""A watch that lives in a Ray cluster: it goes on without the process that started it, and after its own death."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.runners.ray.watch import end_with_raylet, handle_loss
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.files.home import Home
from chorale.tuner.watch.assembly import open_watch
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.renewal import Event


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """Whether a detached watch still runs, its events after those that the caller has, and what has ended it.

    total: how many events there are by now
    """

    is_running: bool
    events: tuple[Event, ...]
    total: int
    error: ChoraleError | None = None


def detached_watch_name(name: str) -> str:
    """Return the name under which a watch lives in a cluster."""
    return f"chorale-watch:{name}"


class DetachedWatch:
    """Runs a watch in a thread and answers questions about it meanwhile.

    All of its state is on disk: an object that is created again with the same arguments goes on where the last one was
    killed, on the node where the fabric is.
    """

    def __init__(self, config: Mapping[str, Any], home: Path) -> None:
        self._config, self._home = WatchConfig.model_validate(dict(config)), Home(home)
        self._events: list[Event] = []
        self._stop = threading.Event()
        self._error: ChoraleError | None = None
        end_with_raylet()
        handle_loss(lambda loss: os._exit(1))
        self._thread = threading.Thread(target=self._run, name="chorale-watch", daemon=True)
        self._thread.start()

    def status(self, received: int) -> WatchStatus:
        """Return how it is, with the events after the first `received`; all of them where it began anew since."""
        is_running = self._thread.is_alive()
        total = len(self._events)
        count = received if received <= total else 0
        return WatchStatus(is_running, tuple(self._events[count:total]), total, self._error)

    def stop(self) -> None:
        """End the watch soon; what is published stays."""
        self._stop.set()

    def _run(self) -> None:
        try:
            for event in open_watch(self._config, self._home).run(self._stop.is_set):
                self._events.append(event)
        except ChoraleError as error:
            self._error = type(error)(error.rule, str(error.value), error.way_out)  # the value may not travel
        except Exception as error:  # reported by `status`: nobody else sees what ends a thread
            value = f"{type(error).__name__}: {error}"
            self._error = CheckFailed("a watch must go on until it is ended", value, "report this, and start it again")
