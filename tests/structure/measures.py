"""Numbers that say how the source tree is cut: files, lines, share of imports, lengths of functions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.structure.source_tree import (
    LANGUAGES,
    OTHER_PRODUCT_FOLDERS,
    PACKAGES,
    SourceFile,
    node_lines,
    product_files,
)


@dataclass(frozen=True, slots=True)
class Measures:
    """Of some files. import_share: lines of import statements in a hundred; function lengths are in lines."""

    files: int
    lines: int
    import_share: float
    functions: int
    function_median: float
    function_p90: float
    longest_file: int


def measure(files: Sequence[SourceFile]) -> Measures:
    lengths = [node_lines(function) for file in files for function in file.functions()]
    lines = sum(file.line_count for file in files)
    return Measures(
        files=len(files),
        lines=lines,
        import_share=100 * sum(file.import_lines for file in files) / lines,
        functions=len(lengths),
        function_median=float(np.median(lengths)),
        function_p90=float(np.percentile(lengths, 90)),
        longest_file=max(file.line_count for file in files),
    )


def product_table(root: Path) -> str:
    """Return files and lines of the product in all languages, per package, as text. Vendored files do not count."""
    languages = sorted(set(LANGUAGES.values()))
    rows = [f"{'':12} {'files':>6} {'lines':>7} " + " ".join(f"{name:>10}" for name in languages)]
    totals: Counter[str] = Counter()
    for package in (*PACKAGES, *OTHER_PRODUCT_FOLDERS):
        lines: Counter[str] = Counter()
        for path in product_files(root, package):
            lines["files"] += 1
            lines[LANGUAGES[path.suffix]] += len(path.read_text(encoding="utf-8").splitlines())
        totals += lines
        rows.append(_product_row(package, lines, languages))
    return "\n".join([*rows, _product_row("product", totals, languages)])


def _product_row(name: str, lines: Counter[str], languages: Sequence[str]) -> str:
    counts = [lines[language] for language in languages]
    return f"{name:12} {lines['files']:6} {sum(counts):7} " + " ".join(f"{count:10}" for count in counts)


def table(files: Sequence[SourceFile]) -> str:
    titles = f"{'files':>6} {'lines':>7} {'imports':>8} {'functions':>10} {'median':>7} {'p90':>5} {'longest file':>13}"
    heading = f"{'':12} {titles}"
    rows = [heading]
    for package in (*PACKAGES, "chorale", ""):
        chosen = [file for file in files if file.path.startswith(f"{package}/" if package else "")]
        if any(True for file in chosen for _ in file.functions()):
            rows.append(_row(package or "all", measure(chosen)))
    return "\n".join(rows)


def _row(name: str, of: Measures) -> str:
    return (
        f"{name:12} {of.files:6} {of.lines:7} {of.import_share:7.1f}% {of.functions:10} "
        f"{of.function_median:7.0f} {of.function_p90:5.0f} {of.longest_file:13}"
    )
