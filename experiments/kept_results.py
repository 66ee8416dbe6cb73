"""Results of experiments on disk, kept under what they depend on: the question, its extent and all of our code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tuner.files import read_file, write_file

_PACKAGES = ("experiments", "runners", "synth", "tuner")


@dataclass(frozen=True, slots=True)
class KeptResults:
    """One JSON document for each experiment in `folder`, which must exist; as `chorale experiment NAME --json` prints.

    A result is found again as long as no file of our packages has changed.
    """

    folder: Path

    def path(self, name: str, quick: bool) -> Path:
        """Return where the document of the experiment `name` is kept."""
        asked = f"{name} {'quick' if quick else 'full'} {code_id()}"
        return self.folder / f"{name}-{sha256(asked.encode()).hexdigest()[:16]}.json"

    def find(self, name: str, quick: bool) -> Mapping[str, Any] | None:
        """Return the document of the experiment `name`, None if it was not kept."""
        path = self.path(name, quick)
        if not path.exists():
            return None
        document: Mapping[str, Any] = json.loads(read_file(str(path)))
        return document

    def keep(self, name: str, quick: bool, document: Mapping[str, Any]) -> None:
        """Keep the document of the experiment `name`."""
        write_file(self.path(name, quick), json.dumps(document, indent=2).encode())


@cache
def code_id() -> str:
    """Return a digest of every file of our packages, data files among them."""
    digest = sha256()
    for package in _PACKAGES:
        for name, content in _files(resources.files(package), package):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{prefix}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry, name)
        else:
            yield name, entry.read_bytes()
