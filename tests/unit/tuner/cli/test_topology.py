"""`chorale topology` and `chorale fabric`: what they print, and how they refuse."""

import json

import pytest

from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.dumps import cpu, nvswitch_machine, pairs_machine, pci, system
from tests.links import topology_document

ROWS = [("gpu0", "switch:0", "25/2", 1e-6), ("gpu1", "switch:0", 25)]
FABRIC = topology_document(("gpu0", "gpu1"), ROWS, {"switch:0": {}})


@pytest.fixture
def run(capsys):
    return lambda *arguments: chorale(capsys, "topology", *arguments).stdout


def test_show_json(run, tmp_path):
    drawing = tmp_path / "drawing.PNG"
    document = json.loads(run("show", "torus:2x3", "--json", "--plot", drawing))
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert document["topology"] == {
        "spec": "torus:2x3", "nodes": 6, "switches": 0, "links": 18, "degree": 3, "diameter": 2,
        "id": parse_topology("torus:2x3").id,
    }  # fmt: skip
    assert document["vertex_transitive"] is True
    assert document["eulerian"] is True
    assert document["nodes_list"][4] == {"id": "4", "kind": "compute", "rank": 4}
    assert len(document["links_list"]) == 18
    assert document["links_list"][0] == {"src": "1", "dst": "0", "bandwidth": "1", "latency_s": 0.0}
    assert list(document) == ["topology", "assumptions", "vertex_transitive", "eulerian", "nodes_list", "links_list"]
    lines = [line.split() for line in run("show", "mesh:2x3").splitlines()]
    assert ["degree", "not", "regular"] in lines
    assert ["bandwidths", "1", "(link", "capacity)"] in lines


def test_show_json_of_a_file_with_switches(run, tmp_path):
    path, output = tmp_path / "fabric.json", tmp_path / "again.json"
    path.write_text(json.dumps(FABRIC))
    document = json.loads(run("show", f"file:{path}", "--json"))
    facts = {"degree": 1, "nodes": 2, "switches": 1, "diameter": 2}
    assert {name: document["topology"][name] for name in facts} == facts
    assert (document["vertex_transitive"], document["eulerian"]) == (False, True)
    assert document["nodes_list"][2] == {"id": "switch:0", "kind": "switch", "rank": None}
    first = {"src": "switch:0", "dst": "gpu0", "bandwidth": "25/2", "latency_s": 1e-6}
    assert document["links_list"][0] == first
    run("import", path, "-o", output)
    assert from_bytes(output.read_bytes(), "file:a").id == from_bytes(path.read_bytes(), "file:b").id


def test_list_json_has_every_family_with_an_example_that_works(run):
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
    assert "transpose(spec)" in run("list")


def test_import_of_a_dump_joins_boxes_or_says_that_it_only_places_devices(run, tmp_path, capsys):
    dump, output = tmp_path / "dump.xml", tmp_path / "cluster.json"
    dump.write_bytes(nvswitch_machine())
    run("import", dump, "--boxes", "2", "--nic-gbps", "100", "-o", output)
    topology = json.loads(run("show", f"file:{output}", "--json"))
    assert (topology["topology"]["nodes"], topology["topology"]["switches"]) == (8, 2 + 8 + 1)
    bandwidths = {(link["src"], link["dst"]): link["bandwidth"] for link in topology["links_list"]}
    assert bandwidths["1.2", "nvswitch:1"] == "300"
    assert bandwidths["1.2", "nic:1.2"] == bandwidths["nic:1.2", "net:0"] == "25/2"
    rails = tmp_path / "rails.json"
    run("import", dump, "--boxes", "2", "--rails", "-o", rails)
    assert json.loads(rails.read_text())["nodes"][-1] == {"id": "net:3", "kind": "switch"}
    dump.write_bytes(pairs_machine())
    run("import", dump, "-o", output)
    shown, read = (json.loads(run("show", f"file:{file}", "--json"))["topology"] for file in (dump, output))
    assert shown["id"] == read["id"]
    dump = tmp_path / "hints.xml"
    places = (pci(f"000{bus}:00:00.0", kind="0x030200") for bus in range(2))
    dump.write_bytes(system(cpu(0, *places)))
    done = chorale(capsys, "topology", "import", dump, "-o", tmp_path / "box.json")
    assert "does not describe GPUs" in " ".join(done.stderr.split())


def test_without_tools_no_fabric_goes_up_and_one_that_is_not_up_can_be_taken_down(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    up = ("fabric", "up", "ring:3", "--link-mbps", "5", "--name", "never")
    for options in ((), ("--force",)):
        assert "install iproute2" in chorale(capsys, *up, *options, code=3).stderr
    assert chorale(capsys, "fabric", "down", "never", "--json", code=0).document == {"down": []}
    refused = chorale(capsys, "fabric", "exec", "--name", "never", 0, "--", "true", code=2)
    assert "the fabric never is not up" in refused.stderr
