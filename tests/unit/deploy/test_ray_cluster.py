"""The file of Ray's cluster launcher against the schema that Ray ships."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "ray-cluster.yaml").read_text())


def schema() -> dict[str, Any]:
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    return json.loads((Path(found.origin).parent / "autoscaler" / "ray-schema.json").read_text())


def test_the_file_keeps_to_rays_schema():
    jsonschema.validate(DOCUMENT, schema())


@pytest.mark.parametrize("mistake", [{"min_workers": 2}, {"docker": {"imag": "x"}}, {"auth": {"user": "x"}}])
def test_mistakes_are_found(mistake):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**DOCUMENT, **mistake}, schema())


def test_every_worker_may_start():
    assert DOCUMENT["max_workers"] == len(DOCUMENT["provider"]["worker_ips"])


def test_every_node_has_the_token_and_the_data_folder():
    options = DOCUMENT["docker"]["run_options"]
    assert "--env=RAY_AUTH_MODE=token" in options
    (path,) = DOCUMENT["file_mounts"]
    assert f"--env=RAY_AUTH_TOKEN_PATH={path}" in options
    assert any(option.endswith(":/data") for option in options)
