"""Read the state of watched fabrics from the data folder, and send requests to their watches.

The folder `watch/NAME` contains `state.json` in the format `chorale-watch/1`, which a watch replaces every second.
While a file `hold` exists next to it, nothing is published. A file `roll-back` requests the previous table once.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.service.access import NotFound
from chorale.tuner.watch.watcher import FORMAT, HOLD, ROLL_BACK, STATE

SILENCE_S = 10.0
"""A watch that has not written its state for this long counts as not running."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class WatchedFabrics:
    """The fabrics whose watches write to a data folder. Thread-safe, because files are replaced atomically."""

    def __init__(self, home: Home, unix_s: Callable[[], float] = time.time) -> None:
        self._folder = home.root / "watch"
        self._unix_s = unix_s

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"*/{STATE}"))

    def rows(self) -> list[dict[str, Any]]:
        """Return a summary of each fabric, without fabrics whose file is damaged."""
        rows = []
        for name in self.names():
            try:
                state = self.state(name)
                table = state.get("table") or {}
                rows.append(
                    {
                        "name": state["name"],
                        "topology": state["topology"],
                        "state": state["state"],
                        "is_held": bool(state["is_held"]),
                        "is_running": state["is_running"],
                        "table": table.get("digest"),
                        "links": dict(Counter(link["state"] for link in state["links"])),
                    }
                )
            except CheckFailed:  # this fabric's own page shows the error
                continue
        return rows

    def state(self, name: str) -> dict[str, Any]:
        """Return the last state that a watch wrote, with `is_running`: whether the watch is still writing.

        Raises NotFound if there is no such fabric, and CheckFailed if the file is damaged or has another format.
        """
        path = self._path(name) / STATE
        try:
            document = json.loads(path.read_bytes())
            format_name, time_s, _ = document["format"], float(document["time_s"]), list(document["links"])
        except OSError as error:
            way_out = "list them at /v1/fabrics; `chorale watch` begins one"
            raise NotFound("this fabric is not watched", name, way_out) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            rule = "the state of the watch {} is damaged"
            raise CheckFailed(rule, name, "start `chorale watch` again, which replaces it") from error
        if format_name != FORMAT:
            raise CheckFailed(
                f"the state of the watch has another format than {FORMAT}: {{}}",
                str(format_name)[:40],
                "run the same version of Chorale on both sides",
            )
        return {**document, "is_running": self._unix_s() - time_s < SILENCE_S}

    def hold(self, name: str, is_held: bool) -> dict[str, Any]:
        """Stop publishing tables for a fabric or, if `is_held` is False, publish again. Return the fabric's state."""
        state = self.state(name)
        path = self._path(name) / HOLD
        if is_held:
            write_file(path, b"")
        else:
            path.unlink(missing_ok=True)
        return state

    def roll_back(self, name: str) -> dict[str, Any]:
        """Ask a fabric's watch to publish the previous table and hold it. Return the fabric's state.

        Raises CheckFailed if the watch is not running.
        """
        if not self.state(name)["is_running"]:
            way_out = "start `chorale watch` again"
            raise CheckFailed("only a running watch can roll back: {}", f"{name}: no recent update", way_out)
        write_file(self._path(name) / ROLL_BACK, b"")
        return self.hold(name, True)

    def _path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise NotFound("this fabric is not watched", name[:80], "list them at /v1/fabrics")
        return self._folder / name
