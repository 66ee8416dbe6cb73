"""Specs that name files mean the same wherever they are read."""

import json
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import to_json
from chorale.tuner.files.topology_specs import absolute_spec, load_topology


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the process, with a network in ring.json."""
    (tmp_path / "ring.json").write_text(json.dumps(to_json(load_topology("ring:4"))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("spec", ["file:{}", "transpose(file:{})", "product(file:{};ring:3)"])
def test_a_relative_file_is_found_from_another_folder(
    spec: str, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    relative = spec.format("ring.json")
    absolute, network = absolute_spec(relative), load_topology(relative)
    assert absolute == spec.format(folder / "ring.json")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load_topology(absolute).id == network.id
    assert absolute_spec(absolute) == absolute


@pytest.mark.parametrize("spec", ["torus:4x4", "degree( ring:4 ; 2)"])
def test_a_spec_without_files_stays_as_it_is(spec: str):
    assert absolute_spec(spec) == spec


def test_what_is_no_spec_is_refused():
    with pytest.raises(InvalidInput):
        absolute_spec("file:")
