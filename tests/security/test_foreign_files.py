"""What another user made does not run here, opens no door and is no secret."""

import grp
import os
import struct
from pathlib import Path

import pytest

from chorale.runners.engine.build import native_folder
from chorale.runners.measurement.private_files import read_secret, why_foreign, write_private
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import load_settings, read_tokens
from chorale.tuner.tracking.mlflow_pages import password_file
from tests.command import chorale, python
from tests.security.conftest import OTHER_USER, OtherUser


def test_a_data_folder_of_another_user_is_refused_by_every_command_that_uses_one(
    shared_folder: Path, as_other_user: OtherUser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared_folder.chmod(0o777)
    assert as_other_user(f"mkdir -p {shared_folder}/chorale-data/service").returncode == 0
    monkeypatch.chdir(shared_folder)
    monkeypatch.delenv("CHORALE_HOME", raising=False)
    best = ["best", "--topology", "ring:4", "--collective", "allreduce", "--size", "1M"]
    for words in (best, ["campaign", "list"], ["doctor"], ["serve", "--port", "1"]):
        done = chorale(capsys, *words)
        assert (done.code, "belongs to" in done.stderr) == (2, True), (words, done.stderr)


def test_a_data_folder_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, -1, OTHER_USER) if os.geteuid() == 0 else None  # a group that others may be in
    monkeypatch.setenv("CHORALE_HOME", str(folder))
    for mode in (0o700, 0o755):
        folder.chmod(mode)
        assert Home.from_environment().root == folder
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        with pytest.raises(InvalidInput, match=f"others may write to it \\(mode {mode:04o}\\).*chmod go-w"):
            Home.from_environment()


def test_the_group_of_a_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, -1, os.geteuid())
    tmp_path.chmod(0o770)
    assert why_foreign(tmp_path) is None
    entries = ((1, 7, -1), (2, 7, OTHER_USER), (4, 7, -1), (16, 7, -1), (32, 0, -1))  # as `setfacl -m u:USER:rwx` does
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(tmp_path, "system.posix_acl_access", access)
    assert "others may write" in str(why_foreign(tmp_path))
    os.removexattr(tmp_path, "system.posix_acl_access")
    group = grp.getgrgid(os.getegid())
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((group[0], "x", group[2], ["somebody"])))
    assert "others may write" in str(why_foreign(tmp_path))


REPLACED = {
    "a link of another user": "ln -s {0}/mine {0}/way",
    "a folder above that all may write to": "mkdir {0}/way; chmod 777 {0}/way; mkdir {0}/way/mine",
    "a link of mine to a folder of another user": "mkdir {0}/theirs; chmod 755 {0}/theirs; ln -s {0}/theirs {0}/way",
}


@pytest.mark.parametrize("line", REPLACED.values(), ids=list(REPLACED))
def test_what_another_user_may_replace_is_refused(
    line: str, shared_folder: Path, as_other_user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_folder.chmod(0o1777)
    (shared_folder / "mine").mkdir(mode=0o755)
    assert as_other_user(line.format(shared_folder)).returncode == 0
    way = shared_folder / "way"
    if "theirs" in line:
        os.chown(way, 0, 0, follow_symlinks=False)
    if (way / "mine").exists() and not way.is_symlink():
        os.chown(way / "mine", 0, 0)
        way = way / "mine"
    monkeypatch.setenv("CHORALE_HOME", str(way))
    with pytest.raises(InvalidInput, match="does not belong to you alone"):
        Home.from_environment()
    if "theirs" not in line:
        (way / "secret").write_text("0123456789abcdef")
        (way / "secret").chmod(0o600)
        with pytest.raises(InvalidInput, match="others may read the secret"):
            read_secret(way / "secret")


def test_parts_of_a_data_folder_that_others_made_and_what_is_no_folder_are_refused(tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("CHORALE_HOME", str(home))
    for part in ("service/jobs.db", "service", "campaigns"):
        (home / part).mkdir(parents=True, exist_ok=True)
        assert Home.from_environment().root == home
        (home / part).chmod(0o777)
        with pytest.raises(InvalidInput, match=f"{part}: others may write"):
            Home.from_environment()
        (home / part).chmod(0o700)
    for name, make in {"file": Path.touch, "pipe": os.mkfifo, "link": lambda path: path.symlink_to(path)}.items():
        make(tmp_path / name)
        monkeypatch.setenv("CHORALE_HOME", str(tmp_path / name))
        with pytest.raises(InvalidInput, match=r"the data folder (is not a folder|cannot be read)"):
            Home.from_environment()


def test_a_cache_that_others_could_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was closed to others and then trusted, with what they had put in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "chorale").mkdir()
    (tmp_path / "chorale").chmod(0o777)
    assert not native_folder().is_relative_to(tmp_path)
    (tmp_path / "chorale").chmod(0o755)
    assert native_folder().is_relative_to(tmp_path)
    tmp_path.chmod(0o777)
    assert not native_folder().is_relative_to(tmp_path)


def test_tokens_and_settings_of_another_user_are_refused(shared_folder: Path, as_other_user: OtherUser) -> None:
    shared_folder.chmod(0o777)
    tokens, settings = shared_folder / "tokens.yaml", shared_folder / "settings.yaml"
    assert as_other_user(f"echo 'tokens: []' > {tokens}; echo 'runners: {{}}' > {settings}").returncode == 0
    with pytest.raises(InvalidInput, match="belongs to"):
        read_tokens(tokens)
    with pytest.raises(InvalidInput, match="belongs to"):
        load_settings(str(settings), Home(shared_folder))


PLANTED = """
import importlib, pathlib, sys
(pathlib.Path(__file__).parent / "ran").touch()
sys.path[:] = [path for path in sys.path if path not in ("", str(pathlib.Path(__file__).parent))]
sys.modules.pop(__name__)
importlib.invalidate_caches()
sys.modules[__name__] = importlib.import_module(__name__)
"""
STARTING = {
    "planning": ("loky", "json", "multiprocessing"),
    "executor": ("chorale", "multiprocessing"),
    "cluster": ("chorale", "numpy"),
}
STARTS = """
import os, sys
if __name__ == "__main__":
    if sys.argv[1] == "planning":
        from chorale.tuner.service.jobs.planning import PlanningProcesses
        pool = PlanningProcesses(1, 60.0, 2**30)
        assert pool.call("me", os.getpid) != os.getpid()
        pool.close()
    elif sys.argv[1] == "executor":
        from chorale.synth.executor.processes import ProcessExecutor
        pool = ProcessExecutor(1)
        assert pool.map(os.path.join, ["b"], "a") == ["a/b"]
        pool.close()
    else:
        from chorale.runners.ray.cluster import RayCluster, ray
        from chorale.synth.topology.spec import parse_topology
        with RayCluster(cpus=2):
            assert ray.get(ray.remote(parse_topology).remote("ring:4")).spec == "ring:4"
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["planning", "executor", pytest.param("cluster", marks=pytest.mark.ray)])
def test_processes_import_nothing_from_the_working_folder(tmp_path: Path, where: str) -> None:
    """A shared folder may hold another user's `chorale` or `numpy`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "starts.py").write_text(STARTS)
    (tmp_path / "shared").mkdir()
    for name in STARTING[where]:
        (tmp_path / "shared" / f"{name}.py").write_text(PLANTED)
    python(tmp_path / "mine" / "starts.py", where, folder=tmp_path / "shared", timeout_s=500, PYTHONSAFEPATH="")
    assert not (tmp_path / "shared" / "ran").exists()


def test_an_empty_secret_is_refused_and_one_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """As a full disk left it; then an empty password was accepted."""
    home = Home(tmp_path)
    (tmp_path / "ui-password").touch(mode=0o600)
    with pytest.raises(InvalidInput, match=r"at least 16 characters, got 0 in .*remove it"):
        password_file(home)
    for zeros in (b"\0" * 32, b"\xff" * 32):  # as a power failure left it
        (tmp_path / "ui-password").write_bytes(zeros)
        with pytest.raises(InvalidInput, match="must be printable text"):
            password_file(home)
    (tmp_path / "ui-password").unlink()
    assert len(read_secret(password_file(home))) >= 32
    (tmp_path / "ui-password").unlink()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

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
