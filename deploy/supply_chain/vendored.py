"""Code of other projects among our files: each folder of it has a `vendored.json` with names, versions and hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("tuner/service/page/vendor", "tests/browser/vendor")
LISTING = "vendored.json"


@dataclass(frozen=True, slots=True)
class VendoredPackage:
    """A package of which files are in `folder`. sha256: of each of them; texts: files with its licenses"""

    folder: Path
    name: str
    version: str
    license: str
    purl: str
    source: str
    texts: tuple[str, ...]
    sha256: dict[str, str]

    def component(self) -> dict[str, Any]:
        """Return what the bill of materials says of it."""
        return {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
            "licenses": [{"expression": self.license}],
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in self.sha256.values()],
        }

    def notice(self) -> str:
        """Return its name and the texts of its licenses."""
        texts = "\n".join((self.folder / name).read_text(errors="replace") for name in self.texts)
        return f"\n{'=' * 100}\n{self.name} {self.version}: {self.license}\n\n{texts}"

    def damaged(self) -> list[str]:
        """Return the files that are missing or not those that were vendored."""
        return [
            name
            for name, digest in self.sha256.items()
            if not (self.folder / name).is_file()
            or hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != digest
        ]


def vendored_packages(root: Path = ROOT) -> Iterator[VendoredPackage]:
    """Yield what the folders below `root` list."""
    for name in FOLDERS:
        folder = root / name
        if (folder / LISTING).is_file():
            for entry in json.loads((folder / LISTING).read_text()):
                yield VendoredPackage(folder, **{**entry, "texts": tuple(entry["texts"])})
