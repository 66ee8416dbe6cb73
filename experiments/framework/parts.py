"""Which of our files a module can depend on: those it imports, those that they import, and the data beside them.

Parts of answers on disk, kept under what they depend on: the case and the code behind it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from chorale.experiments.framework.catalog import module_of
from chorale.experiments.framework.experiment import Case
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.read_write import read_file, write_file

ROOT = Path(__file__).parents[3]
"""The folder that holds the package `chorale`."""
_PACKAGES = ("chorale/experiments", "chorale/runners", "chorale/synth", "chorale/tuner")


def source_files_of(module: str) -> dict[str, Path]:
    """Return the files that `module` can load by their paths below the folder of our packages, in order.

    Imports are read, not run: those inside functions count, those that only a type checker sees do not. Whatever is
    not Python in the folder of a module that counts, or in a folder below that is no package, counts too. Modules that
    are imported by a name put together at run time are not seen. Raises KeyError where `module` is none of ours.
    """
    modules = _modules()
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = modules[name]
            waiting += [one for one in _loaded_with(name) if one in modules]
    data = {path for folder in {path.parent for path in found.values()} for path in _data(folder)}
    return {path.relative_to(ROOT).as_posix(): path for path in sorted({*found.values(), *data})}


@cache
def _modules() -> dict[str, Path]:
    """Return the files of all our modules by name; a package is its `__init__`."""
    found = {}
    for path in (path for package in _PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _loaded_with(module: str) -> frozenset[str]:
    """Return what may be modules that come with `module`: its packages, and what its file imports."""
    parts = module.split(".")
    packages = {".".join(parts[:count]) for count in range(1, len(parts))}
    return frozenset(packages | set(_imports(ast.parse(_modules()[module].read_bytes()))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _imports(node)


def _data(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".py":
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from (inner for inner in path.rglob("*") if inner.is_file() and inner.suffix != ".pyc")


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
