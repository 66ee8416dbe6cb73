"""Faults that a programmer could make: one changed operator, constant, condition, return value or lost statement."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: lines `first` to `last` (from 1) of a file of the tree become `text`."""

    path: str
    first: int
    last: int
    before: str
    text: str

    def apply(self, root: Path) -> str:
        """Write the fault into the tree, and return the file as it was."""
        file = root / self.path
        old = file.read_text(encoding="utf-8")
        lines = old.splitlines(keepends=True)
        lines[self.first - 1 : self.last] = [self.text + "\n"]
        file.write_text("".join(lines), encoding="utf-8")
        return old


def draw_mutants(root: Path, package: str, count: int, seed: int) -> list[Mutant]:
    """Draw faults in statements of functions of a package, all statements alike; the same seed draws the same."""
    rng = random.Random(f"{package} {seed}")
    places = [
        (path, statement)
        for path in sorted((root / package).rglob("*.py"))
        for statement in _statements(ast.parse(path.read_text(encoding="utf-8")))
    ]
    mutants: list[Mutant] = []
    for path, statement in rng.sample(places, len(places)):
        if len(mutants) == count:
            break
        mutant = _mutant(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix(), statement, rng)
        if mutant is not None:
            mutants.append(mutant)
    return mutants


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the simple statements, and the heads of compound ones, within functions; no docstrings or imports."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                kinds = ast.Assign | ast.AugAssign | ast.Return | ast.Expr | ast.If | ast.While | ast.Raise | ast.Assert
                if isinstance(node, kinds) and not is_text:
                    yield node


def _mutant(source: str, path: str, statement: ast.stmt, rng: random.Random) -> Mutant | None:
    """Return one fault in a statement, or None where it has nothing to change."""
    head = statement.test if isinstance(statement, ast.If | ast.While) else statement
    last = head.end_lineno or head.lineno
    kept = source.splitlines()[statement.lineno - 1 : last]
    changes = list(_changes(statement, head))
    if not changes:
        return None
    node, new = rng.choice(changes)
    text = "\n".join(kept)
    begin = _offset(kept, node.lineno - statement.lineno, node.col_offset)
    end = _offset(kept, (node.end_lineno or node.lineno) - statement.lineno, node.end_col_offset or 0)
    changed = text[:begin] + new + text[end:]
    return None if changed == text else Mutant(path, statement.lineno, last, text, changed)


def _offset(lines: list[str], row: int, column_bytes: int) -> int:
    column = len(lines[row].encode()[:column_bytes].decode())
    return sum(len(line) + 1 for line in lines[:row]) + column


def _changes(statement: ast.stmt, head: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what may be replaced, and by which text."""
    if isinstance(statement, ast.Expr | ast.AugAssign | ast.Raise):
        yield statement, "pass"
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield statement, "return None"
    if isinstance(statement, ast.If | ast.While):
        yield statement.test, f"(not ({ast.unparse(statement.test)}))"
    for node in ast.walk(head):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield node, str(not node.value)
            elif isinstance(node.value, int):
                yield node, str(node.value + 1)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, f"({ast.unparse(node.operand)})"
        elif isinstance(node, ast.IfExp):
            swapped = ast.IfExp(node.test, node.orelse, node.body)
            yield node, f"({ast.unparse(swapped)})"
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
            yield node, _unparsed(node, op=SWAPPED[type(node.op)]())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
            yield node, _unparsed(node, ops=[SWAPPED[type(node.ops[0])](), *node.ops[1:]])


def _unparsed(node: ast.expr, **changed: object) -> str:
    fields = {name: getattr(node, name) for name in node._fields}
    return f"({ast.unparse(type(node)(**{**fields, **changed}))})"
