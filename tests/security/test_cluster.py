"""A cluster that a command starts belongs to its user; one that anybody may enter is not joined."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.ray import cluster as private_cluster
from chorale.runners.ray.watch import INSECURE_VARIABLE, require_authentication
from chorale.synth.errors import InvalidInput

pytestmark = pytest.mark.timeout(600)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def launched() -> Iterator[dict[str, Any]]:
    """Return what `local_launch` printed, while its cluster runs; by default settings, in a home that others enter."""
    folder = Path(tempfile.mkdtemp(prefix="chorale-shared-", dir="/tmp"))
    folder.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CHORALE_"))}
    environment |= {"HOME": str(folder), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.security.local_launch"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, cwd=REPOSITORY, text=True, **pipes) as process:
        line = process.stdout.readline()
        yield json.loads(line)
        process.communicate(timeout=60)
    shutil.rmtree(folder)


def test_a_local_cluster_is_for_its_user_alone_and_may_be_joined_with_its_token(launched, monkeypatch):
    token = Path(launched["token"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32
    session = Path(launched["session"])
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in session.parents if folder.stat().st_uid == os.geteuid()]
    assert 0o700 in modes
    assert len(os.fsencode(session / "sockets" / "plasma_store")) <= 107
    assert len(launched["ports"]) >= 5  # GCS, raylet, agents, driver, worker
    assert all(launched["ports"].values())
    monkeypatch.delenv(INSECURE_VARIABLE)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", launched["token"])
    require_authentication(launched["address"])


def test_other_users_neither_read_the_token_nor_enter_the_session(launched, as_other_user):
    stolen = as_other_user(f"cat {launched['token']}")
    assert (stolen.returncode != 0, stolen.stdout) == (True, "")
    session = launched["session"]
    assert as_other_user(f"mv {session}/sockets/raylet {session}/sockets/gone").returncode != 0
    assert as_other_user(f"touch {session}/planted").returncode != 0
    assert Path(session, "sockets", "raylet").exists()


@pytest.mark.ray
def test_a_cluster_without_authentication_is_refused(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from chorale.runners.ray.cluster import ray  # noqa: PLC0415 - Ray takes seconds

    address = ray.get_runtime_context().gcs_address
    require_authentication(address)  # tests say --insecure-cluster
    monkeypatch.delenv(INSECURE_VARIABLE)
    with pytest.raises(InvalidInput, match="--insecure-cluster"):
        require_authentication(address)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_AUTH_MODE"}
    join = f"from chorale.runners.ray.cluster import RayCluster\nRayCluster({address!r})"
    done = subprocess.run([sys.executable, "-c", join], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (
        "this Ray cluster does not authenticate its users: anybody who reaches it can run code in it (" in done.stderr
    )


def test_a_token_that_others_could_read_is_taken_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.delenv("RAY_AUTH_MODE")
    private_cluster.secure_token()
    assert (stat.S_IMODE(token.stat().st_mode), token.read_text()) == (0o600, "secret")
