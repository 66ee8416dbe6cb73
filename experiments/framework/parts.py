"""Parts of results on disk, under a digest of what they depend on: the case, and the sources of the package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from chorale.experiments.framework.experiment import Case
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.read_write import read_file, write_file

ROOT = Path(__file__).parents[3] / "chorale"
"""The folder of the package."""


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """The value of one case, as JSON has it, the seconds it took, and the largest memory of its process."""

    value: Any
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class PartStore:
    """One JSON document for each part in `folder`, which must exist.

    A part is found again as long as no file of the package changes. Versions of libraries do not count.
    """

    folder: Path

    def path(self, name: str, case: Case) -> Path:
        """Return the path of the part of `case` of the experiment `name`."""
        key = f"{code_id()} {name} {case!r}"
        return self.folder / f"{name}-{sha256(key.encode()).hexdigest()[:16]}.json"

    def load(self, name: str, case: Case) -> ExperimentPart | None:
        """Return the part of `case`, None if it was not saved. Raises InvalidInput if the file was changed."""
        path = self.path(name, case)
        if not path.exists():
            return None
        try:
            return ExperimentPart(**json.loads(read_file(str(path))))
        except (ValueError, TypeError) as error:
            rule = "a kept part must be as it was written"
            raise InvalidInput(rule, f"{path}: {error}", "delete the file, and it is worked out again") from error

    def save(self, name: str, case: Case, part: ExperimentPart) -> None:
        """Save the part of `case`, as a whole or not at all."""
        write_file(self.path(name, case), json.dumps(asdict(part), indent=1).encode())


@cache
def code_id() -> str:
    """Return a digest of every source and data file of the package, but for what is compiled from them."""
    digest = sha256()
    packages = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")
    for path in sorted(ROOT.glob("*.py")) + [path for package in packages for path in sorted(package.rglob("*"))]:
        if path.is_file() and path.suffix not in (".pyc", ".so"):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
