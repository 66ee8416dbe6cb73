"""Parts of results on disk, under a digest of what they depend on: the case, and all files behind its experiment.

The files behind a module are those that it imports, directly or not, and the data beside them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from chorale.experiments.framework.catalog import module_of
from chorale.experiments.framework.experiment import Case
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.read_write import read_file, write_file

ROOT = Path(__file__).parents[3]
"""The folder that holds the package `chorale`."""
_DOTTED = re.compile(r"\w+(\.\w+)*")
_PACKAGES = ("chorale/experiments", "chorale/runners", "chorale/synth", "chorale/tuner")


def source_files_of(module: str) -> dict[str, Path]:
    """Return the files behind `module`, by their paths below `ROOT`, in order.

    Imports are parsed, not run: those inside functions count, those for type checkers do not. Data files in the folder
    of such a module, or in a folder below it that is no package, count too. So do modules that a string names, from its
    own package on, since they may be imported by it; other names that are put together at run time are not seen. Raises
    KeyError if `module` is not in our packages.
    """
    modules = _modules()
    loaded: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in loaded:
            loaded[name] = modules[name]
            waiting += [other for other in _loaded_with(name) if other in modules]
    data = {path for folder in {path.parent for path in loaded.values()} for path in _data(folder)}
    return {path.relative_to(ROOT).as_posix(): path for path in sorted({*loaded.values(), *data})}


@cache
def _modules() -> dict[str, Path]:
    """Return the files of all our modules by name; a package is its `__init__`."""
    files = {}
    for path in (path for package in _PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@cache
def _loaded_with(module: str) -> frozenset[str]:
    """Return the names that are loaded with `module`: its parent packages and what its file imports, or names."""
    path = _modules()[module]
    parts = module.split(".")
    packages = [".".join(parts[:count]) for count in range(1, len(parts))]
    own = module if path.name == "__init__.py" else packages[-1]
    tree = ast.parse(path.read_bytes())
    return frozenset((*packages, *_imports(tree), *_named_modules(tree, own)))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _imports(node)


def _named_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules within `package` that begin a string, as "families.torus.TORUS" does where families are."""
    modules = _modules()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            words = node.value.split(".")
            beginnings = (".".join((package, *words[:count])) for count in range(len(words), 0, -1))
            yield from islice((name for name in beginnings if name in modules), 1)


def _data(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".py":
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from (inner for inner in path.rglob("*") if inner.is_file() and inner.suffix != ".pyc")


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """The value of one case, as JSON has it, the seconds it took, and the largest memory of its process."""

    value: Any
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class PartStore:
    """One JSON document for each part in `folder`, which must exist.

    A part is found again as long as no file behind its experiment changes. Versions of libraries do not count.
    """

    folder: Path

    def path(self, name: str, case: Case) -> Path:
        """Return the path of the part of `case` of the experiment `name`."""
        key = f"{code_id(module_of(name))} {case!r}"
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
def code_id(module: str) -> str:
    """Return a digest of every file behind `module`."""
    digest = sha256()
    for name, path in source_files_of(module).items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
