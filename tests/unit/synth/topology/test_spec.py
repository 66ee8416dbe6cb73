"""Specs: what they parse to, and one-line errors with the rule, the value and the way out."""

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.grammar import FamilyCall, FileCall, FunctionCall, Number, Option, parse_spec
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS, parse_topology

LIST = "`chorale topology list` shows all"
FORMS = "write family:arguments, function(spec;…) or file:PATH (see `chorale topology list`)"
WITHOUT = "write without(spec;node=K;link=A-B;link=A>B;part=p/q;…)"
NODES = "a topology must have at most 1048576 nodes; got {0}; choose a smaller network"
LINKS = "a topology must have at most 134217728 links; got {0}; choose a smaller network"

GOLDEN_ERRORS = {
    "": f'a topology spec must have a family or function in every place; got ""; {FORMS}',
    "4": f"a topology spec must begin with a family or a function; got 4; {FORMS}",
    "node=3": f"a topology spec must begin with a family or a function; got node=3; {FORMS}",
    "Torus:4x4": f"a family or function must be named by small letters, digits and -; got Torus:4x4; {FORMS}",
    "tours:4x4": f"unknown topology family 'tours'; did you mean 'torus'? {LIST}",
    "zzz": f"unknown topology family 'zzz'; {LIST}",
    "transposed(ring:4)": (f"unknown topology function 'transposed'; did you mean 'transpose'? {LIST}"),
    "transpose(ring:4": 'parentheses in a topology spec must be balanced; got transpose(ring:4; add the missing ")"',
    "transpose(ring:4))": f"a topology spec must end where its parentheses close; got transpose(ring:4)); {FORMS}",
    "ring:4;ring:5": f"a topology spec must end where its parentheses close; got ring:4;ring:5; {FORMS}",
    "transpose(;ring:4)": (
        f"a topology spec must have a family or function in every place; got transpose(;ring:4); {FORMS}"
    ),
    "transpose()": f"a topology spec must have a family or function in every place; got transpose(); {FORMS}",
    "transpose(4)": "the first argument of transpose must be a topology spec; got 4; write transpose(spec)",
    "transpose(ring:3;ring:4)": (
        "transpose must have exactly one argument; got transpose(ring:3;ring:4); write transpose(spec)"
    ),
    "file:": "file: must be followed by the path of a file; got file:; write file:PATH",
    "file:x.json": "a file: spec must come with a reader of files; got file:x.json; give read_file",
    "ring": "the arguments of ring must be whole numbers; got ring; write ring:m, such as ring:8",
    "ring:2": "ring:m must have m >= 3 nodes; got ring:2; use complete:2 for a pair of nodes",
    "ring:3,4": "ring must have one whole number; got ring:3,4; write ring:m, such as ring:8",
    "ring:-3": "the arguments of ring must be whole numbers; got ring:-3; write ring:m, such as ring:8",
    "ring:3.5": "the arguments of ring must be whole numbers; got ring:3.5; write ring:m, such as ring:8",
    "ring:٣": "the arguments of ring must be whole numbers; got ring:٣; write ring:m, such as ring:8",
    "ring:" + "9" * 30: f"a number must have at most 18 digits; got ring:{'9' * 30}; write ring:m, such as ring:8",
    "biring:3,6": "biring:d,m must have an even degree d >= 2; got biring:3,6; use biring:2,m or uniring:d,m",
    "biring:4,2": "biring:d,m must have m >= 3 nodes; got biring:4,2; use uniring:d,2 for a pair of nodes",
    "uniring:0,4": "uniring:d,m must have a degree d >= 1; got uniring:0,4; use uniring:1,m",
    "uniring:1,1": "uniring:d,m must have m >= 2 nodes; got uniring:1,1; use uniring:d,2 for a pair of nodes",
    "torus:4,4": "the arguments of torus must be whole numbers; got torus:4,4; write torus:AxBx…, such as torus:4x4x2",
    "torus:4x1": "every dimension of torus must be >= 2; got torus:4x1; leave out dimensions of 1",
    "mesh:0x4": "every dimension of mesh must be >= 2; got mesh:0x4; leave out dimensions of 1",
    "hypercube:0": "hypercube:n must have n >= 1; got hypercube:0; use hypercube:1 for a pair of nodes",
    "hypercube:999999999": "hypercube:n must have n <= 20; got hypercube:999999999; choose a smaller network",
    "complete:1": "complete:m must have m >= 2 nodes; got complete:1; use complete:2 for a pair of nodes",
    "bipartite:0": "bipartite:d must have d >= 1; got bipartite:0; use bipartite:2 or more",
    "circulant:9": (
        "circulant must have at least one offset; got circulant:9; write circulant:n,a1,a2,… such as circulant:16,3,4"
    ),
    "circulant:9,9": (
        "every offset of a circulant must lie between 1 and n - 1; got circulant:9,9; "
        "write circulant:n,a1,a2,… such as circulant:16,3,4"
    ),
    "circulant:9,2,7": (
        "offsets of a circulant must differ, also up to sign; got circulant:9,2,7; "
        "write circulant:n,a1,a2,… such as circulant:16,3,4"
    ),
    "circulant:12,2,4": (
        "n and the offsets of a circulant must have no common factor; got circulant:12,2,4; avoid the factor 2"
    ),
    "torus:9999999x9999999": NODES.format("torus:9999999x9999999"),
    "uniring:999999999999,2": LINKS.format("uniring:999999999999,2"),
    "complete:20000": LINKS.format("complete:20000"),
    "transpose(without(mesh:99999x99999;node=1))": NODES.format("mesh:99999x99999"),
    "without(ring:4)": f"without must be told what to remove; got without(ring:4); {WITHOUT}",
    "without(ring:4;3)": f"without takes node=K, link=A-B and part=p/q; got 3; {WITHOUT}",
    "without(ring:4;edge=0-1)": f"without takes node=K, link=A-B and part=p/q; got edge=0-1; {WITHOUT}",
    "without(ring:4;link=0)": "a link must be written A-B or A>B with ranks or node ids; got 0; write link=0-1",
    "without(ring:4;node=4)": (
        "a node of ring:4 must be named by rank or id; got 4; `chorale topology show` lists the ids and ranks"
    ),
    "without(ring:4;link=0-2)": "a link to be removed must exist; got 0-2; `chorale topology show` lists the links",
    "without(ring:3;node=0;node=1)": (
        "at least two compute nodes must survive; got without(ring:3;node=0;node=1); remove fewer nodes"
    ),
    "without(uniring:1,4;link=1>2)": (
        "every node must have a path to every other; "
        "got no path from 0 to 2 in without(uniring:1,4;link=1>2); add links or remove the node"
    ),
}


@pytest.mark.parametrize("spec", GOLDEN_ERRORS)
def test_malformed_specs_get_one_line(spec):
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    assert str(caught.value) == GOLDEN_ERRORS[spec]
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", [spec for spec, error in GOLDEN_ERRORS.items() if "at most" in error])
def test_absurd_sizes_are_refused_at_once_and_without_memory(spec):
    tracemalloc.start()
    start_s = time.process_time()
    with pytest.raises(InvalidInput):
        parse_topology(spec)
    assert time.process_time() - start_s < 0.1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_nesting_is_limited():
    deep = "transpose(" * 17 + "ring:4" + ")" * 17
    with pytest.raises(InvalidInput, match="nest at most 16 deep"):
        parse_topology(deep)
    assert parse_topology(deep[10:-1]).node_count == 4
    with pytest.raises(InvalidInput, match="at most 65536 characters"):
        parse_topology("(" * 10**6)


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
