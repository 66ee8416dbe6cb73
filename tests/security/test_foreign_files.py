"""What another user made does not run here, opens no door and is no secret."""

import os
from pathlib import Path

import pytest

from chorale.runners.measurement.private_files import read_secret, why_foreign, write_private
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import read_tokens
from chorale.tuner.service.settings import load_settings
from chorale.tuner.tracking.mlflow_pages import password_file
from tests.command import chorale
from tests.security.conftest import OTHER_USER, OtherUser


def test_a_data_folder_of_another_user_is_refused_by_every_command(
    shared_folder: Path, as_other_user: OtherUser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared_folder.chmod(0o777)
    assert as_other_user(f"mkdir -p {shared_folder}/chorale-data/service").returncode == 0
    monkeypatch.chdir(shared_folder)
    monkeypatch.delenv("CHORALE_HOME", raising=False)
    for words in (["synth", "bfb", "torus:2x2"], ["campaign", "list"], ["doctor"], ["serve", "--port", "1"]):
        done = chorale(capsys, *words)
        assert (done.code, "belongs to" in done.stderr) == (2, True), (words, done.stderr)


@pytest.mark.parametrize(("mode", "refused"), [(0o700, False), (0o755, False), (0o770, True), (0o707, True)])
def test_a_data_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, refused: bool
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, -1, OTHER_USER) if os.geteuid() == 0 else None  # a group that others may be in
    folder.chmod(mode)
    monkeypatch.setenv("CHORALE_HOME", str(folder))
    if refused:
        with pytest.raises(InvalidInput, match=f"others may write to it \\(mode {mode:04o}\\).*chmod go-w"):
            Home.from_environment()
    else:
        assert Home.from_environment().root == folder


def test_the_group_of_a_user_may_write(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, os.geteuid())
    tmp_path.chmod(0o770)
    assert why_foreign(tmp_path) is None


def test_tokens_and_settings_of_another_user_are_refused(shared_folder: Path, as_other_user: OtherUser) -> None:
    shared_folder.chmod(0o777)
    tokens, settings = shared_folder / "tokens.yaml", shared_folder / "settings.yaml"
    assert as_other_user(f"echo 'tokens: []' > {tokens}; echo 'runners: {{}}' > {settings}").returncode == 0
    with pytest.raises(InvalidInput, match="belongs to"):
        read_tokens(tokens)
    with pytest.raises(InvalidInput, match="belongs to"):
        load_settings(str(settings), Home(shared_folder))


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    """As a full disk left it; then an empty password was accepted."""
    home = Home(tmp_path)
    (tmp_path / "ui-password").touch(mode=0o600)
    with pytest.raises(InvalidInput, match=r"at least 16 characters, got 0 in .*remove it"):
        password_file(home)
    (tmp_path / "ui-password").unlink()
    assert len(read_secret(password_file(home))) >= 32


def test_a_secret_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    home = Home(tmp_path)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(Unavailable, match="No space left"):
        password_file(home)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_make_a_secret_at_once_both_have_the_first(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_private(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
