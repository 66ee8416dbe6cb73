"""Results of experiments on disk, kept under what they depend on: the question, its extent and the code behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from experiments.catalog import module_of
from experiments.source_files import ROOT, files_behind
from tuner.files import read_file, write_file

_COMMAND = "tuner/cli/experiment.py"
"""The file that makes documents of rows."""


@dataclass(frozen=True, slots=True)
class KeptResults:
    """One JSON document for each experiment in `folder`, which must exist; as `chorale experiment NAME --json` prints.

    A result is found again as long as no file has changed that its experiment imports, directly or not, no data beside
    them, and not the command that prints it. Versions of libraries do not count.
    """

    folder: Path

    def path(self, name: str, quick: bool) -> Path:
        """Return where the document of the experiment `name` is kept."""
        asked = f"{name} {'quick' if quick else 'full'} {code_id(module_of(name))}"
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
def code_id(module: str) -> str:
    """Return a digest of every file behind `module` and of the command that asks it."""
    files = {**files_behind(module), _COMMAND: ROOT / _COMMAND}
    digest = sha256()
    for name, path in files.items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
