"""Parts of answers on disk, kept under what they depend on: the case and the code behind it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from chorale.experiments.catalog import module_of
from chorale.experiments.experiment import Case
from chorale.experiments.source_files import source_files_of
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.read_write import read_file, write_file


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """What one case gave, as JSON has it, how long that took, and the most memory that its process ever had."""

    value: Any
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class PartStore:
    """One JSON document for each part in `folder`, which must exist.

    A part is found again as long as no file has changed that its experiment imports, directly or not, and no data
    beside them. Versions of libraries do not count.
    """

    folder: Path

    def path(self, name: str, case: Case) -> Path:
        """Return where the part of `case` of the experiment `name` is kept."""
        asked = f"{code_id(module_of(name))} {case!r}"
        return self.folder / f"{name}-{sha256(asked.encode()).hexdigest()[:16]}.json"

    def load(self, name: str, case: Case) -> ExperimentPart | None:
        """Return the part of `case`, None if it was not kept. Raises InvalidInput if the file is not what was kept."""
        path = self.path(name, case)
        if not path.exists():
            return None
        try:
            return ExperimentPart(**json.loads(read_file(str(path))))
        except (ValueError, TypeError) as error:
            rule = "a kept part must be as it was written"
            raise InvalidInput(rule, f"{path}: {error}", "delete the file, and it is worked out again") from error

    def save(self, name: str, case: Case, part: ExperimentPart) -> None:
        """Keep the part of `case`; it is there whole or not at all."""
        write_file(self.path(name, case), json.dumps(asdict(part), indent=1).encode())


@cache
def code_id(module: str) -> str:
    """Return a digest of every file behind `module`."""
    digest = sha256()
    for name, path in source_files_of(module).items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
