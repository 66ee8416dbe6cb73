"""`chorale topology`: what it prints, and how it refuses."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from synth.errors import ChoraleError, InvalidInput
from synth.topology.spec import parse_topology
from tuner.cli import topology as command

FABRIC = {
    "format": "chorale-topology/1",
    "name": "two GPUs on a switch",
    "bandwidth_unit": "GB/s",
    "nodes": [
        {"id": "switch:0", "kind": "switch"},
        {"id": "gpu0", "kind": "compute"},
        {"id": "gpu1", "kind": "compute"},
    ],
    "links": [
        {"src": "gpu0", "dst": "switch:0", "bandwidth": "25/2", "latency_s": 1e-6, "bidirectional": True},
        {"src": "gpu1", "dst": "switch:0", "bandwidth": 25, "bidirectional": True},
    ],
}


def run(*arguments: str) -> str:
    """Run the command, return its output; errors come as exceptions."""
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    result = CliRunner().invoke(app, ["topology", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_show_json():
    document = json.loads(run("show", "torus:2x3", "--json"))
    assert document["topology"] == {
        "spec": "torus:2x3",
        "nodes": 6,
        "switches": 0,
        "links": 18,
        "degree": 3,
        "diameter": 2,
        "id": parse_topology("torus:2x3").id,
    }
    assert document["vertex_transitive"] is True
    assert document["eulerian"] is True
    assert document["nodes_list"][4] == {"id": "4", "kind": "compute", "rank": 4}
    assert len(document["links_list"]) == 18
    assert document["links_list"][0] == {"src": "1", "dst": "0", "bandwidth": "1", "latency_s": 0.0}
    assert list(document) == ["topology", "vertex_transitive", "eulerian", "nodes_list", "links_list"]


def test_show_json_of_a_file_with_switches(tmp_path):
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(FABRIC))
    document = json.loads(run("show", f"file:{path}", "--json"))
    assert document["topology"]["degree"] == 1
    assert (document["topology"]["nodes"], document["topology"]["switches"]) == (2, 1)
    assert document["topology"]["diameter"] == 2
    assert document["vertex_transitive"] is False
    assert document["eulerian"] is True
    assert document["nodes_list"][2] == {"id": "switch:0", "kind": "switch", "rank": None}
    first = {"src": "switch:0", "dst": "gpu0", "bandwidth": "25/2", "latency_s": 1e-6}
    assert document["links_list"][0] == first


def test_show_for_people():
    lines = [line.split() for line in run("show", "mesh:2x3").splitlines()]
    assert ["mesh:2x3"] in lines
    assert ["degree", "not", "regular"] in lines
    assert ["diameter", "3"] in lines
    assert ["vertex-transitive", "no"] in lines
    assert ["bandwidths", "1", "(link", "capacity)"] in lines


def test_list_json_has_every_family_with_an_example_that_works():
    rows = json.loads(run("list", "--json"))["topologies"]
    names = {row["name"] for row in rows}
    families = {"ring", "biring", "uniring", "torus", "mesh", "hypercube", "complete", "bipartite", "circulant"}
    families |= {"twisted-torus", "twisted-hypercube", "hamming", "dicirculant", "kautz", "genkautz", "debruijn"}
    families |= {"dbjmod", "diamond", "distreg", "cayley", "base", "shiftedring", "dbt", "hxmesh", "hyperx"}
    functions = {"line", "degree", "power", "product", "bidirectional", "transpose", "without", "scaled"}
    assert families | functions | {"file"} <= names
    for row in rows:
        assert set(row) == {"name", "kind", "syntax", "what", "example"}
        if row["kind"] != "file":
            assert parse_topology(row["example"]).spec == row["example"]


def test_list_for_people():
    printed = run("list")
    assert "hypercube:n" in printed
    assert "transpose(spec)" in printed


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_plot(tmp_path, suffix):
    path = tmp_path / f"drawing{suffix}"
    run("show", "torus:3x3", "--plot", str(path))
    start = path.read_bytes()[:8]
    assert start.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()])


def test_plot_with_json_prints_only_json(tmp_path):
    json.loads(run("show", "ring:4", "--json", "--plot", str(tmp_path / "a.png")))
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nope:3"], "a topology family must be one that is known"),
        (["show", "file:missing.json"], "an input file must be readable; got missing.json: No such file or directory"),
        (["show", "torus:9999999x9999999"], "a topology must have at most 1048576 nodes"),
        (["show", "ring:4", "--plot", "a.bmp"], "a plot must be a .png, .svg or .pdf file; got a.bmp"),
        (["show", "ring:4", "--plot", "a"], "a plot must be a .png, .svg or .pdf file; got a"),
        (["show", "ring:4", "--plot", "no/such/folder/a.png"], "the folder of an output file must exist"),
        (["show", "complete:300", "--plot", "a.png"], "a drawing must have at most 50000 links"),
    ],
)
def test_bad_input_is_exit_2_with_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ChoraleError) as caught:
        run(*arguments)
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
