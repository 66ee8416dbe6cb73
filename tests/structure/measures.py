"""Numbers that say how the source tree is cut: files, lines, share of imports, lengths of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.structure.source_tree import PACKAGES, SourceFile, node_lines


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
    """Return the measures of `files`, of which there must be at least one with a function."""
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


def table(files: Sequence[SourceFile]) -> str:
    """Return the measures of each package and of all, as text."""
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
