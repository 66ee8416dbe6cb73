"""Compares what pip downloaded with hashes.txt: `python hashes.py check REPORT…`, `python hashes.py add REPORT…`.

A REPORT is what `pip install --report` writes; pip has checked or computed the SHA-256 in it. Standard library only, as
it judges an environment before anything of it runs.

- another SHA-256 under a known file name is refused (exit code 1); HASHES=warn only warns
- a file that is not listed (another platform, another Python, an index with builds of its own) is counted in a warning;
  HASHES=strict refuses it, too
- a REPORT that is not there is of a part that was not installed
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

LIST = Path(__file__).parents[2] / "hashes.txt"


def read_list(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file name; lines are those of `sha256sum`."""
    lines = (line.split() for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: digest for digest, name in lines}


def downloads(report: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield file name and SHA-256 of each archive in a report of pip; folders, such as this project, have none."""
    entries = report.get("install", [])
    for entry in entries if isinstance(entries, list) else []:
        info = entry["download_info"]
        if digest := info.get("archive_info", {}).get("hashes", {}).get("sha256"):
            yield unquote(urlsplit(info["url"]).path.rpartition("/")[2]), digest


def differences(listed: Mapping[str, str], downloaded: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of files with other bytes than listed, and of those that are not listed."""
    changed = sorted(name for name, digest in downloaded.items() if listed.get(name, digest) != digest)
    return changed, sorted(downloaded.keys() - listed.keys())


def main(arguments: Sequence[str], mode: str, path: Path = LIST) -> int:
    """Do what the words of the command line say; return the exit code."""
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
