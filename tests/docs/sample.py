"""Draw sentences, docstrings and messages at random, for a reader who does not know Chorale to mark what is unclear.

python -m tests.docs.sample --count 60 --seed 1
"""

import argparse
import ast
import random
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import DOCS, PAGES, ROOT

_SHORTEST_WORDS = 6


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's paragraphs and list items, without code blocks, tables and headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "#", "!", ":::"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    found = (part for each in paragraphs for part in re.split(r"(?<=[.!?])\s+(?=[A-Z*`])", " ".join(each.split())))
    return [sentence for sentence in found if len(sentence.split()) >= _SHORTEST_WORDS]


_PACKAGES = ("chorale", "synth", "runners", "job", "tuner", "experiments")


def docstrings() -> list[tuple[str, str]]:
    """Return the docstrings of the product with their places, each below its definition, as a reader meets it."""
    drawn: list[tuple[str, str]] = []
    for path in sorted(path for package in _PACKAGES for path in _files(package)):
        source = path.read_text(encoding="utf-8")
        drawn.extend(
            (
                f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}",
                _with_definition(node, source.splitlines(), text),
            )
            for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node))
        )
    return drawn


def _with_definition(node: ast.Module | ast.ClassDef | ast.FunctionDef, lines: list[str], text: str) -> str:
    if isinstance(node, ast.Module):
        return "\n" + textwrap.indent(text, "    ")
    head = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]))
    fields = [lines[each.lineno - 1].strip() for each in node.body if isinstance(each, ast.AnnAssign)]
    return "\n" + head + "\n" + textwrap.indent("\n".join([text, *fields]), "    ")


def messages() -> list[tuple[str, str]]:
    """Return commands with mistakes, and what each says."""
    blocks = (ROOT / "tests" / "golden" / "messages.txt").read_text(encoding="utf-8").strip().split("\n\n")
    return [(block.partition("\n")[0], block.partition("\n")[2]) for block in blocks]


def _files(package: str) -> Iterator[Path]:
    return (path for path in (ROOT / package).rglob("*.py") if not any(part.is_symlink() for part in path.parents))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pages = {page: DOCS / page for page in PAGES} | {name: ROOT / name for name in ("README.md", "CHANGELOG.md")}
    drawn = [(page, sentence) for page, path in pages.items() for sentence in sentences(path.read_text())]
    generator = random.Random(options.seed)
    for kind in (drawn, docstrings(), messages()):
        for where, text in generator.sample(kind, options.count // 3):
            sys.stdout.write(f"{where}: {text}\n")


if __name__ == "__main__":
    main()
