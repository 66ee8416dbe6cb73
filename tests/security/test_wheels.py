"""The installer of oneCCL takes the wheels that it knows, and keeps them inside its folder."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from chorale.runners.oneccl import install
from chorale.runners.oneccl import install as build
from chorale.synth.errors import InvalidInput, Unavailable

OUTSIDE = "../" * 12


@pytest.mark.parametrize("name", [f"include/oneapi/{OUTSIDE}planted.h", "include/oneapi/../../../planted.h"])
def test_a_crafted_wheel_stays_inside(tmp_path: Path, name: str) -> None:
    wheel, target = tmp_path / "a.whl", tmp_path / "target"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"a-1.data/data/{name}", b"planted")
    with pytest.raises(InvalidInput, match="which lies outside its folder"):
        install.unpack(wheel, target / "include")
    assert not list(tmp_path.rglob("planted.h"))


def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    wheel, target = tmp_path / "a.whl", tmp_path / "target"
    (target / "include").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (target / "include" / "oneapi").symlink_to(tmp_path / "elsewhere")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.data/data/include/oneapi/a.h", b"planted")
    with pytest.raises(InvalidInput, match="which lies outside its folder"):
        install.unpack(wheel, target)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_wheel_with_other_bytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in build.HASHES if name.startswith(("oneccl_devel", "impi_rt"))]

    def download(folder: Path, packages: object) -> None:
        for name in names:
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr(f"a-1.data/data/{build.ARCHIVE}", b"another library")

    monkeypatch.setattr(install, "_download", download)
    with pytest.raises(Unavailable, match="SHA-256"):
        install.install({"2021.17": tmp_path / "target"})
    assert not (tmp_path / "target").exists()


def test_every_package_that_is_downloaded_has_a_hash() -> None:
    pins = {(name.replace("-", "_"), number) for group in build.PACKAGES.values() for name, number in group.items()}
    assert pins == {tuple(name.split("-")[:2]) for name in build.HASHES}
    assert all(len(bytes.fromhex(digest)) == hashlib.sha256().digest_size for digest in build.HASHES.values())
