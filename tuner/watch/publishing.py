"""Publication of a table: the file that jobs read, and what others are told of it.

The file comes first and alone decides what jobs run. What is published, and who has not heard of it, also stands in a
file of the watch, so that a watch that was killed at any moment goes on without publishing or telling anything twice.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from chorale.job.table.layout import file_digest
from chorale.synth.errors import Unavailable
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.receivers import Publication, Receiver

FORMAT = "chorale-publications/1"
_MOST_WAITING = 100


@dataclass(frozen=True, slots=True)
class ReceiverChange:
    """What became of telling a receiver. failure: why it could not be told, None after a failure that is over"""

    receiver: str
    failure: str | None


class PublicationFiles:
    """The record of publications in a folder: which is present, which was before, who waits for which; and tables."""

    def __init__(self, folder: Path) -> None:
        """folder: of this watch alone; it must exist"""
        self._folder = folder

    def write(self, document: Mapping[str, Any], tables: Mapping[str, bytes]) -> None:
        """Replace the record; keep the tables of these digests and no others."""
        for digest, data in tables.items():
            if not (self._folder / digest).exists():
                write_file(self._folder / digest, data)
        write_file(self._record, json.dumps({"format": FORMAT, **document}, indent=1).encode())
        for path in self._folder.iterdir():
            if len(path.name) == 64 and path.name not in tables:
                path.unlink()

    def read(self) -> dict[str, Any]:
        """Return the record, empty where there is none of this format."""
        try:
            document: dict[str, Any] = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if document.get("format") == FORMAT else {}

    def publication(self, record: Mapping[str, Any]) -> Publication | None:
        """Return the publication of a record, None where its table is gone."""
        try:
            data = (self._folder / str(record["table"])).read_bytes()
        except OSError:
            return None
        return Publication(str(record["table"]), data, float(record["time_s"]), dict(record["facts"]))

    @property
    def _record(self) -> Path:
        return self._folder / "publications.json"


@dataclass(slots=True)
class Publisher:
    """Writes the file of the present table, and hands publications to receivers in their order.

    One thread publishes, another one may deliver. files: None keeps no record
    """

    path: Path
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    files: PublicationFiles | None = None
    present: Publication | None = None
    former: Publication | None = None
    _waiting: dict[str, deque[Publication]] = field(default_factory=dict)
    _failing: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def resume(self) -> None:
        """Go on where a former watch ended, as far as the file still holds what it published last."""
        record = self.files.read() if self.files is not None else {}
        digest = file_digest(self.path)
        for name in ("next", "present"):
            entry = record.get(name)
            if entry is not None and entry["table"] == digest:
                self.present = self._of(entry)
                self.former = self._of(record["present" if name == "next" else "former"])
                break
        begun = record.get("next")
        for entry in record.get("waiting", []):
            if begun is not None and self._id(entry) == self._id(begun) and digest != begun["table"]:
                continue  # it was not published any more
            publication = self._of(entry)
            if publication is not None and entry["receiver"] in self.receivers:
                self._queue(entry["receiver"]).append(publication)

    def publish(self, publication: Publication) -> None:
        """Replace the file. InvalidInput or Unavailable where that cannot be done: nothing is published then."""
        with self._lock:
            for name in self.receivers:
                self._queue(name).append(publication)
            try:
                self._write(publication)
                write_file(self.path, publication.data)
            except Exception:
                for name in self.receivers:
                    self._queue(name).pop()
                raise
            self.former, self.present = self.present, publication
            self._write(None)

    def deliver(self) -> list[ReceiverChange]:
        """Hand on what waits; return the receivers that have begun to fail, and those that have ceased to."""
        changes = []
        for name in self.receivers:
            failure = self._deliver_to(name)
            if (failure is not None) != (name in self._failing):
                changes.append(ReceiverChange(name, failure))
                self._failing ^= {name}
        return changes

    def waiting(self) -> Mapping[str, int]:
        """Return how many publications each receiver has not heard of."""
        return {name: len(self._waiting.get(name, ())) for name in self.receivers}

    def _deliver_to(self, name: str) -> str | None:
        waiting = self._queue(name)
        while waiting:
            publication = waiting[0]
            try:
                self.receivers[name](publication)
            except Unavailable as error:
                return str(error)
            with self._lock:
                if waiting and waiting[0] is publication:
                    waiting.popleft()
                self._write(None)
        return None

    def _queue(self, name: str) -> deque[Publication]:
        return self._waiting.setdefault(name, deque(maxlen=_MOST_WAITING))

    def _of(self, entry: Mapping[str, Any] | None) -> Publication | None:
        return None if entry is None or self.files is None else self.files.publication(entry)

    @staticmethod
    def _id(entry: Mapping[str, Any]) -> tuple[str, float]:
        return entry["table"], entry["time_s"]

    def _write(self, begun: Publication | None) -> None:
        """Write the record; `begun` is about to replace the file."""
        if self.files is None:
            return
        waiting = [(name, each) for name, queue in self._waiting.items() for each in queue]
        named = {"next": begun, "present": self.present, "former": self.former}
        document = {name: _entry(each) for name, each in named.items()}
        entries = [{"receiver": name, **(_entry(each) or {})} for name, each in waiting]
        tables = {each.digest: each.data for each in (*named.values(), *(each for _, each in waiting)) if each}
        self.files.write({**document, "waiting": entries}, tables)


def _entry(publication: Publication | None) -> dict[str, Any] | None:
    if publication is None:
        return None
    return {"table": publication.digest, "time_s": publication.time_s, "facts": dict(publication.facts)}
