"""What the local stack reads from the compose file."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.local_stack.compose import DEPLOY, PORTS, Places, Service, read_services


@pytest.fixture
def places(tmp_path: Path) -> Places:
    subprocess.run([DEPLOY / "make-secrets", tmp_path / "secrets"], capture_output=True, check=True)
    return Places(tmp_path)


@pytest.fixture
def services(places: Places) -> dict[str, Service]:
    return read_services(places)


def test_words_of_containers_become_words_of_this_machine(places):
    port = places.ports
    folder = places.folder
    for there, here in {
        "--address=ray-head:6379": f"--address=127.0.0.1:{port['6379']}",
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--port=5000": f"--port={port['5000']}",
        "http://127.0.0.1:8600/healthz": f"http://127.0.0.1:{port['8600']}/healthz",
        "mlflow:5000,localhost:5000": f"127.0.0.1:{port['5000']},localhost:{port['5000']}",
        "postgresql+psycopg://mlflow:12ab@postgres:5432/mlflow": f"postgresql+psycopg://mlflow:12ab@127.0.0.1:{port['5432']}/mlflow",
        "--tokens=/run/secrets/tokens": f"--tokens={folder}/secrets/tokens.yaml",
        "--temp-dir=/tmp/ray": f"--temp-dir={folder}/ray",
        "/data": f"{folder}/data",
        "--artifacts-destination=s3://mlflow": f"--artifacts-destination={folder}/artifacts",
        "--num-cpus=2": "--num-cpus=2",
        "50000": "50000",
    }.items():
        assert places.here(there) == here


def test_nothing_of_the_containers_is_left(services):
    for name in ("mlflow", "ray-head", "ray-worker", "service"):
        words = [*services[name].command, *services[name].health]
        text = " ".join([*words, services[name].environment.get("MLFLOW_TRACKING_URI", "")])
        assert not re.search(rf"(0\.0\.0\.0|ray-head|/run/|//mlflow|=/data|:({'|'.join(PORTS)})\b)", text), text


def test_secrets_reach_those_who_have_them_in_containers(services):
    assert services["mlflow"].environment["MLFLOW_BACKEND_STORE_URI"].startswith("postgresql+psycopg://mlflow:")
    tokens = {services[name].environment["RAY_AUTH_TOKEN"] for name in ("ray-head", "ray-worker", "service")}
    assert len(tokens) == 1
    assert "RAY_AUTH_TOKEN" not in services["mlflow"].environment
    assert services["ray-worker"].replicas == 2
