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


def test_the_file_keeps_to_rays_schema_which_finds_mistakes():
    [folder] = importlib.util.find_spec("ray").submodule_search_locations
    schema = json.loads((Path(folder) / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(DOCUMENT, schema)
    for mistake in ({"min_workers": 2}, {"docker": {"imag": "x"}}, {"auth": {"user": "x"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**DOCUMENT, **mistake}, schema)


def test_every_worker_may_start_and_every_node_has_the_token_and_the_data_folder():
    assert DOCUMENT["max_workers"] == len(DOCUMENT["provider"]["worker_ips"])
    options = DOCUMENT["docker"]["run_options"]
    assert "--env=RAY_AUTH_MODE=token" in options
    (path,) = DOCUMENT["file_mounts"]
    assert f"--env=RAY_AUTH_TOKEN_PATH={path}" in options
    assert any(option.endswith(":/data") for option in options)
