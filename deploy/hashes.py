"""Compares downloads of pip with hashes.txt: `python hashes.py check REPORT…`, `python hashes.py add REPORT…`.

A REPORT is a file written by `pip install --report`, with the SHA-256 of each download. This script uses only the
standard library, because it checks an environment before any of its packages runs.

- a known file name with another SHA-256 is refused (exit code 1); HASHES=warn only warns
- unlisted files (another platform or Python, an index with its own builds) are counted in a warning; HASHES=strict
  refuses them, too
- a missing REPORT belongs to a part that was not installed
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

LIST = Path(__file__).parents[1] / "hashes.txt"


def read_list(path: Path) -> dict[str, str]:
    """Return file name -> SHA-256 from a file in the format of `sha256sum`."""
    lines = (line.split() for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: digest for digest, name in lines}


def downloads(report: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield file name and SHA-256 of each archive in a report of pip. Folders, such as this project, are left out."""
    entries = report.get("install", [])
    for entry in entries if isinstance(entries, list) else []:
        info = entry["download_info"]
        if digest := info.get("archive_info", {}).get("hashes", {}).get("sha256"):
            yield unquote(urlsplit(info["url"]).path.rpartition("/")[2]), digest


def differences(listed: Mapping[str, str], downloaded: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of downloaded files with another SHA-256 than listed, and of unlisted files."""
    changed = sorted(name for name, digest in downloaded.items() if listed.get(name, digest) != digest)
    return changed, sorted(downloaded.keys() - listed.keys())


def main(arguments: Sequence[str], mode: str, path: Path = LIST) -> int:
    """Run the task `check` or `add`, the first of `arguments`; return the exit code. mode: value of HASHES"""
    task, *reports = arguments
    downloaded: dict[str, str] = {}
    for report in map(Path, reports):
        if report.exists():
            downloaded |= downloads(json.loads(report.read_text()))
    listed = read_list(path) if path.exists() else {}
    if task == "add":
        lines = [f"{digest}  {name}\n" for name, digest in sorted((listed | downloaded).items())]
        path.write_text("".join(lines))
        return 0
    changed, unlisted = differences(listed, downloaded)
    for name in changed:
        sys.stderr.write(f"error: {name} is not the file that hashes.txt names: it has SHA-256 {downloaded[name]}\n")
    if unlisted:
        sample = ", ".join(unlisted[:3])
        sys.stderr.write(
            f"warning: {len(unlisted)} of {len(downloaded)} files are not in hashes.txt, such as {sample}\n"
        )
    if changed and mode != "warn":
        way_out = "remove .venv, and use an index that serves the original files, or HASHES=warn make setup"
        sys.stderr.write(f"error: packages must be those that the project is tested with: {way_out}\n")
        return 1
    return 1 if unlisted and mode == "strict" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ.get("HASHES", "")))
