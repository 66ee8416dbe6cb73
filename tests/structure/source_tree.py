"""The source files of the repository, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("synth", "runners", "job", "tuner", "experiments")

OTHER_PRODUCT_FOLDERS = ("chorale", "deploy", "examples")
"""What else belongs to the product. Links in `chorale/` to the packages are not followed."""

LANGUAGES = {
    ".py": "Python", ".cpp": "C++", ".hpp": "C++", ".h": "C++", ".c": "C++", ".cu": "C++", ".js": "JavaScript",
} | {".html": "templates", ".css": "templates", ".jinja": "templates", ".sh": "shell"}  # fmt: skip
"""Suffix of a source file -> the column in which its lines are counted."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceFile:
    """A Python file; `path` is relative to the root of the tree, as `synth/errors.py`."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def module(self) -> str:
        """The name under which it is imported, below `chorale` for the four packages."""
        parts = self.path.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join(parts if parts[0] == "chorale" else ["chorale", *parts])

    @property
    def line_count(self) -> int:
        return len(self.text.splitlines())

    @property
    def import_lines(self) -> int:
        """Lines of import statements, wherever they stand."""
        statements = (node for node in ast.walk(self.tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
        return sum(node_lines(node) for node in statements)

    def functions(self) -> Iterator[FunctionNode]:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield node

    def imports(self, only_at_start: bool = False) -> Iterator[str]:
        """Yield the dotted names of what is imported: of modules, and of names in them as `module.name`.

        only_at_start: only statements that run when the module is loaded; never those for type checkers
        """
        yield from _imports(self.tree.body, only_at_start)


def source_files(root: Path) -> list[SourceFile]:
    """Return the files of the four packages and of the public face below `root`, ordered by path."""
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    paths += (root / "chorale").glob("*.py")
    return [SourceFile(path.relative_to(root).as_posix(), path.read_text()) for path in sorted(paths)]


def product_files(root: Path, package: str) -> list[Path]:
    """Return the source files of all languages in a folder of the product, without vendored and ignored ones."""
    return [
        path
        for path in sorted((root / package).rglob("*"))  # does not follow links to folders
        if path.suffix in LANGUAGES and path.is_file() and not {"vendor", "__pycache__"} & set(path.parts)
    ]


def node_lines(node: ast.stmt) -> int:
    """Return how many lines a statement takes, without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _imports(body: list[ast.stmt], only_at_start: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not (only_at_start and isinstance(node, FunctionNode)):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from _imports(_statements(getattr(node, part, [])), only_at_start)


def _statements(nodes: list[ast.AST]) -> list[ast.stmt]:
    flat: list[ast.stmt] = []
    for node in nodes:
        flat += node.body if isinstance(node, ast.ExceptHandler) else [node] if isinstance(node, ast.stmt) else []
    return flat
