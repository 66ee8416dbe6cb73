"""The compose file against the compose specification, and against what the guide promises of it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.local_stack.stack import DEPLOY, PORTS, Places, Service, read_services

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]


def test_the_file_keeps_to_the_specification_which_finds_mistakes():
    # Merged keys (`<<`) are YAML's, which the library leaves to others: it reads the file as it is in full.
    assert len(PyCompose.from_yaml(yaml.safe_dump(DOCUMENT))) == len(SERVICES) == 7
    unhealthy = {"depends_on": {"mlflow": {"condition": "healthy"}}}
    for mistake in ({"imag": "x"}, {"healthcheck": {"tst": ["CMD", "x"]}}, unhealthy):
        broken = {"services": {**SERVICES, "service": {**SERVICES["service"], **mistake}}}
        with pytest.raises(ValueError, match=r"services\.service"):
            PyCompose.from_yaml(yaml.safe_dump(broken))


def test_whoever_is_waited_for_says_when_it_is_ready():
    for name, entry in SERVICES.items():
        for needed, how in entry.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert SERVICES[needed]["healthcheck"]["test"][0] == "CMD", (name, needed)
            else:
                assert SERVICES[needed]["restart"] == "no"  # it ends, and is waited for to end
    assert "healthcheck" in SERVICES["service"]  # `up --wait` waits for it


def test_images_secrets_and_volumes_are_named_exactly_and_ports_are_of_this_machine_only():
    for name, entry in SERVICES.items():
        tag = entry["image"].rpartition(":")[2]
        assert re.fullmatch(r"(RELEASE\.)?\d[\w.-]+", tag), name
        assert not any("PASSWORD" in key or "TOKEN" in key for key in entry.get("environment", {})), name
        for volume in entry.get("volumes", ()):
            assert volume.partition(":")[0] in DOCUMENT["volumes"]
        assert set(entry.get("secrets", ())) <= set(DOCUMENT["secrets"])
    published = [port for entry in SERVICES.values() for port in entry.get("ports", ())]
    assert {port.rpartition(":")[2] for port in published} == {"5000", "8265", "8600"}
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_secrets_are_made_by_the_script(tmp_path):
    script = DEPLOY / "make-secrets"
    made = tmp_path / "secrets"
    subprocess.run([script, made], capture_output=True, check=True)
    wanted = {Path(entry["env_file"]).name for entry in SERVICES.values() if "env_file" in entry}
    wanted |= {Path(secret["file"]).name for secret in DOCUMENT["secrets"].values()}
    assert {path.name for path in made.iterdir()} == wanted
    for path in made.iterdir():
        assert path.stat().st_mode & 0o777 == (0o644 if path.name == "tokens.yaml" else 0o600)
    again = subprocess.run([script, made], capture_output=True, check=False)
    assert again.returncode != 0  # what is in use is not made anew


def test_the_service_shares_the_node_of_the_head():
    service, head = SERVICES["service"], SERVICES["ray-head"]
    assert service["network_mode"] == service["pid"] == "service:ray-head"
    assert service["volumes"] == head["volumes"]
    assert f"--temp-dir={service['volumes'][1].partition(':')[2]}" in head["command"]
    assert service["environment"] == head["environment"]
    assert service["environment"]["RAY_AUTH_MODE"] == "token"


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


def test_nothing_of_the_containers_is_left_but_secrets_for_those_who_have_them_there(services):
    for name in ("mlflow", "ray-head", "ray-worker", "service"):
        words = [*services[name].command, *services[name].health]
        text = " ".join([*words, services[name].environment.get("MLFLOW_TRACKING_URI", "")])
        assert not re.search(rf"(0\.0\.0\.0|ray-head|/run/|//mlflow|=/data|:({'|'.join(PORTS)})\b)", text), text
    assert services["mlflow"].environment["MLFLOW_BACKEND_STORE_URI"].startswith("postgresql+psycopg://mlflow:")
    tokens = {services[name].environment["RAY_AUTH_TOKEN"] for name in ("ray-head", "ray-worker", "service")}
    assert len(tokens) == 1
    assert "RAY_AUTH_TOKEN" not in services["mlflow"].environment
    assert services["ray-worker"].replicas == 2
