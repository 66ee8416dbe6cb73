"""Lists the packages in this Python's environment: `python -m deploy.supply_chain.bill FOLDER`.

`bill-of-materials.cdx.json` is in the format CycloneDX 1.6, with the SHA-256 of each downloaded file that hashes.txt
lists. `third-party-notices.txt` has the licenses, copyleft ones first, and their texts.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from deploy.supply_chain.hashes import LIST, read_list

ROOT = Path(__file__).parents[2]
FOLDERS = ("tuner/service/page/vendor", "tests/browser/vendor")
LISTING = "vendored.json"


@dataclass(frozen=True, slots=True)
class VendoredPackage:
    """A package whose files are copied into `folder`. sha256: by file name; texts: names of its license files"""

    folder: Path
    name: str
    version: str
    license: str
    purl: str
    source: str
    texts: tuple[str, ...]
    sha256: dict[str, str]

    def notice(self) -> str:
        """Return the package's name and the texts of its licenses."""
        texts = "\n".join((self.folder / name).read_text(errors="replace") for name in self.texts)
        return f"\n{'=' * 100}\n{self.name} {self.version}: {self.license}\n\n{texts}"

    def damaged(self) -> list[str]:
        """Return the names of files that are missing or whose SHA-256 differs."""
        return [
            name
            for name, digest in self.sha256.items()
            if not (self.folder / name).is_file()
            or hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != digest
        ]


def vendored_packages(root: Path = ROOT) -> Iterator[VendoredPackage]:
    """Yield the packages that the vendor folders below `root` list."""
    for name in FOLDERS:
        folder = root / name
        if (folder / LISTING).is_file():
            for entry in json.loads((folder / LISTING).read_text()):
                yield VendoredPackage(folder, **{**entry, "texts": tuple(entry["texts"])})


PROJECT = "chorale-collectives"
BILL, NOTICES = "bill-of-materials.cdx.json", "third-party-notices.txt"
_LICENSE_FILE = re.compile(r"(^|/)(licen[sc]e|copying|notice|authors)[^/]*$", re.IGNORECASE)
_COPYLEFT = re.compile(r"\b(A?GPL|LGPL|MPL|EPL|EUPL|General Public|Mozilla)", re.IGNORECASE)
MAX_NAME = 80


def components(installed: Iterable[Distribution]) -> list[Distribution]:
    """Return the distributions except this project, sorted by name, without duplicates."""
    named = {_normal(each.metadata["Name"]): each for each in installed if each.metadata["Name"]}
    return [each for name, each in sorted(named.items()) if name != PROJECT]


def bill_of_materials(packages: Sequence[Distribution], version: str, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the CycloneDX document of `packages`. The same packages give the same document."""
    root = {"type": "application", "bom-ref": PROJECT, "name": PROJECT, "version": version}
    purls = {
        _normal(each.metadata["Name"]): f"pkg:pypi/{_normal(each.metadata['Name'])}@{each.version.replace('+', '%2B')}"
        for each in packages
    }
    digests: dict[str, list[str]] = {}
    for file, digest in sorted(hashes.items()):
        name, release = file.removesuffix(".tar.gz").split("-")[:2]
        digests.setdefault(f"{_normal(name)}-{release}", []).append(digest)
    components, dependencies = [], [{"ref": PROJECT, "dependsOn": sorted(purls.values())}]
    for each in packages:
        name, named = _normal(each.metadata["Name"]), each.metadata.get_all("License-Expression", [""])[0]
        terms = {"expression": named} if named else {"license": {"name": license_of(each)}}
        found = digests.get(f"{name}-{each.version}", [])
        components.append(_component(purls[name], each.metadata["Name"], each.version, terms, found))
        needed = (_normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in each.requires or [])
        dependencies.append({"ref": purls[name], "dependsOn": sorted({purls[one] for one in needed if one in purls})})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": dependencies,
    }


def _component(
    purl: str, name: str, version: str, terms: Mapping[str, object], digests: Iterable[str]
) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    facts = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": [terms]}
    return {**facts, "hashes": hashes} if hashes else facts


def notices(packages: Sequence[Distribution]) -> str:
    """Return the packages' names, licenses and license texts."""
    rows = [(each.metadata["Name"], each.version, license_of(each)) for each in packages]
    strong = [f"{name} {version}: {terms}" for name, version, terms in rows if _COPYLEFT.search(terms)]
    lines = ["Third-party packages", "", "Copyleft, in whole or in part:", *strong, "", "All:"]
    lines += [f"{name} {version}: {terms}" for name, version, terms in rows]
    for each in packages:
        lines += ["", "=" * 100, f"{each.metadata['Name']} {each.version}", ""]
        files = [file for file in each.files or [] if _LICENSE_FILE.search(str(file)) and ".dist-info/" in str(file)]
        paths = [path for file in files if (path := Path(str(file.locate()))).is_file()]
        texts = [path.read_text(errors="replace") for path in paths]
        lines += texts or [f"(no text in the package; {license_of(each)})"]
    return "\n".join(lines) + "\n"


def license_of(package: Distribution) -> str:
    """Return the license that the package states: an SPDX expression, its classifiers, or a short name."""
    metadata = package.metadata
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if "License ::" in line]
    short = metadata.get_all("License", [""])[0].strip().partition("\n")[0]
    return metadata.get_all("License-Expression", [""])[0] or ", ".join(classifiers) or short[:MAX_NAME] or "not stated"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(folder: Path) -> None:
    """Write both files into `folder`."""
    installed = list(distributions())
    versions = {_normal(each.metadata["Name"]): each.version for each in installed if each.metadata["Name"]}
    packages = components(installed)
    document = bill_of_materials(packages, versions.get(PROJECT, "0"), read_list(LIST))
    vendored = list(vendored_packages())
    document["components"] += [
        _component(each.purl, each.name, each.version, {"expression": each.license}, each.sha256.values())
        for each in vendored
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BILL).write_text(json.dumps(document, indent=2) + "\n")
    (folder / NOTICES).write_text(notices(packages) + "\n".join(each.notice() for each in vendored))
    print(f"{folder / BILL}: {len(packages)} packages, {len(vendored)} vendored; {folder / NOTICES}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
