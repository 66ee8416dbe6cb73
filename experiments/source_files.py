"""Which of our files a module can depend on: those it imports, those that they import, and the data beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
