"""Specs: what they parse to, and one-line errors with the rule, the value and the way out."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.registry import FamilyCall, FileCall, FunctionCall, Number, Option, parse_spec
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS, parse_topology


def test_nesting_and_length_have_limits():
    deep = "transpose(" * 17 + "ring:4" + ")" * 17
    with pytest.raises(InvalidInput, match="nest at most 16 deep"):
        parse_topology(deep)
    assert parse_topology(deep[10:-1]).node_count == 4
    for spec, rule in (("(" * 10**6, "at most 65536 characters"), ("", "a family or function is missing in the spec")):
        with pytest.raises(InvalidInput, match=rule):
            parse_topology(spec)


def test_tree():
    spec = " without( transpose(torus:4 x 4) ; node= 3;link=a:b-c.d; link=0>1 )"
    tree = parse_spec(spec)
    inner = FunctionCall("transpose", (FamilyCall("torus", "4x4"),))
    node, there_and_back, one_way = Option("node", "3"), Option("link", "a:b-c.d"), Option("link", "0>1")
    assert tree == FunctionCall("without", (inner, node, there_and_back, one_way))
    assert str(tree) == "without(transpose(torus:4x4);node=3;link=a:b-c.d;link=0>1)"
    assert parse_spec("line(bipartite:4;3)") == FunctionCall("line", (FamilyCall("bipartite", "4"), Number("3")))
    assert parse_spec("diamond") == FamilyCall("diamond", "")


@pytest.mark.parametrize(
    ("spec", "tree"),
    [
        ("file:a b;c).json", FileCall("a b;c).json")),
        ("transpose(file:a (1).json)", FunctionCall("transpose", (FileCall("a (1).json"),))),
        ("without(file:/x/y.json;node=2)", FunctionCall("without", (FileCall("/x/y.json"), Option("node", "2")))),
    ],
)
def test_paths_keep_blanks_and_balanced_parentheses(spec, tree):
    assert parse_spec(spec) == tree
    assert parse_spec(str(tree)) == tree


@given(st.text(alphabet="ring:tous(4x);,=-> 0file.", max_size=40))
def test_any_text_parses_or_gets_one_line(text):
    try:
        topology = parse_topology(text)
    except InvalidInput as error:
        message = str(error)
    else:
        assert parse_topology(topology.spec).id == topology.id
        message = ""
    assert "\n" not in message


@pytest.mark.parametrize("entry", [*FAMILIES.values(), *FUNCTIONS.values()], ids=lambda entry: entry.name)
def test_examples_of_the_catalog_work(entry):
    topology = parse_topology(entry.example)
    assert topology.spec == entry.example
    assert entry.syntax.startswith(entry.name)
    assert entry.plan.__doc__


def test_file_inside_a_function():
    content = str(to_json(parse_topology("ring:5"))).replace("'", '"').encode()
    topology = parse_topology("without(file:x.json;node=0)", {"x.json": content}.__getitem__)
    assert topology.spec == "without(file:x.json;node=0)"
    assert topology.id == parse_topology("without(ring:5;node=0)").id


REFUSED = (Path(__file__).parents[3] / "data" / "refused-specs.txt").read_text(encoding="utf-8").splitlines()
LINES = [line.strip() for line in REFUSED if line and not line.startswith("#")]
CASES = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.mark.parametrize(("spec", "error"), CASES)
def test_a_wrong_spec_is_refused_with_its_message(spec: str, error: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    assert str(caught.value) == error
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", [spec for spec, error in CASES if error.startswith("a topology must have at most")])
def test_absurd_sizes_are_refused_without_memory(spec: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidInput):
        parse_topology(spec)
    memory_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory_bytes < 2**20
