"""`chorale lower`, `chorale lift` and `chorale verify` of programs, also for collectives that no library has."""

import json
import re

import pytest

import chorale.tuner.cli.verify as lower
from chorale.synth.collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.collective_files import parse_collective_file
from tests.command import chorale
from tests.custom_programs import PROGRAMS, SCAN, SHIFT, scan_program, shift_program


@pytest.mark.parametrize(
    ("target", "placement", "collective"),
    [
        ("msccl-xml", "--inplace", "allreduce"),
        ("msccl-executor-xml", "--outofplace", "allgather"),
        ("oneccl-xml", "--inplace", "reduce_scatter"),
    ],
)
def test_what_was_lowered_lifts(capsys, tmp_path, schedule, target, placement, collective):
    program, loose, again = (tmp_path / name for name in ("program.xml", "loose.xml", "again.xml"))
    options = ("--target", target, "--channels", 2, "--instances", 2, "--protocol", "LL128", placement)
    made = schedule(collective=collective, suffix="json")
    done = chorale(capsys, "lower", made, *options, "-o", program, "--json", code=0)
    assert done.document["resources"]["channels"] == 4
    assert {"loss", "advice"}.isdisjoint(done.document)  # steps lose nothing
    if target == "msccl-xml":
        assert program.read_bytes().startswith(b"<algo ")
        assert b'inplace="1" outofplace="0"' in program.read_bytes()
    text = program.read_text()
    loose.write_text('<?xml version="1.0"?>\n' + text.replace("  <", "\t<") if target == "oneccl-xml" else text)
    lifted = chorale(capsys, "lift", loose, "--spec", "hypercube:3", "-o", again, "--json", code=0)
    expected = {"ok": True, "collective": collective, "ranks": 8, "violations": []}
    assert {name: lifted.document[name] for name in expected} == expected
    assert lifted.document["resources"] == done.document["resources"]
    assert lifted.document["target"] == target
    assert again.read_bytes() == program.read_bytes()


def test_programs_of_very_many_ranks_are_written_rank_by_rank(capsys, tmp_path, schedule, monkeypatch):
    whole, streamed = tmp_path / "whole.xml", tmp_path / "streamed.xml"
    made = schedule()
    options = ("--target", "msccl-xml", "--json")
    assert chorale(capsys, "lower", made, *options, "-o", whole).document["checked"] == "execution"
    monkeypatch.setattr(lower, "MAX_CHECKED_RANKS", 7)
    assert chorale(capsys, "lower", made, *options, "-o", streamed, code=0).document["checked"] == "structure"
    assert streamed.read_bytes() == whole.read_bytes()
    chorale(capsys, "lower", made, *options, "--sm-count", 1, "-o", streamed, code=2)
    assert streamed.read_bytes() == whole.read_bytes()
    assert chorale(capsys, "lower", made, "--target", "msccl-xml", "-o", streamed).code == 0


def test_the_predicted_time_is_that_of_the_simulation(capsys, tmp_path, schedule):
    program = tmp_path / "program.xml"
    arguments = ("lower", schedule(), "--target", "oneccl-xml", "-o", program, "--json")
    predicted = chorale(capsys, *arguments).document["predicted"]
    assert predicted == {"time_per_byte": "7/12", "size_bytes": None, "time_us": None}
    assert "has no link rates" in chorale(capsys, *arguments, "--size", "1MiB", code=2).stderr
    lowered = chorale(capsys, *arguments, "--size", "1MiB", "--link-gbps", 100).document["predicted"]
    shown = chorale(capsys, "show", program, "--size", "1MiB", "--link-gbps", 100, "--json").document
    assert lowered["time_us"] == shown["time_us"]
    again = ("lift", program, "--spec", "hypercube:3", "--size", "1MiB", "--link-gbps", 100, "--json")
    assert chorale(capsys, *again).document["predicted"] == lowered
    program.write_text(program.read_text().replace('type="rrc"', 'type="r"', 1))
    assert chorale(capsys, *again).document["predicted"] is None
    plan = ("lower", schedule(), "--target", "mscclpp-json", "-o", tmp_path / "plan.json", "--json")
    assert chorale(capsys, *plan).document["predicted"]["time_per_byte"] == "7/12"


def test_instances_are_chosen_for_sizes(capsys, tmp_path, schedule):
    program = tmp_path / "program.xml"
    made = schedule("ring", "ring:3")
    options = ("--target", "msccl-xml", "--instances", 4, "--sizes", "12000,24000", "-o", program, "--json")
    assert chorale(capsys, "lower", made, *options, code=0).document["chunks"] == 12
    assert b'minBytes="12000" maxBytes="24001"' in program.read_bytes()
    refused = chorale(capsys, "lower", made, "--target", "msccl-xml", "--sizes", "1M", "-o", program, code=2)
    assert "use 1048572 or 1048584 bytes" in refused.stderr
    assert chorale(capsys, "lower", made, *options, "--dtype", "float128").code == 2


def test_parts_of_chunks_are_chosen_by_the_sizes(capsys, tmp_path, schedule):
    made, program = schedule(), tmp_path / "program.xml"
    arguments = ("lower", made, "--target", "msccl-xml", "--split", 4, "-o", program, "--json")
    split = chorale(capsys, *arguments).document
    single = split["chunks_per_shard"] // 4
    assert (split["chunks"], split["instances"]) == (8 * 4 * single, 1)
    fitted = chorale(capsys, *arguments, "--sizes", f"{8 * single * 4 * 3},{8 * single * 4 * 9}").document
    assert fitted["chunks_per_shard"] == 3 * single
    assert chorale(capsys, "lift", program, "--spec", "hypercube:3").code == 0
    assert "sizes must be multiples of" in chorale(capsys, *arguments, "--sizes", "1000000", code=2).stderr
    assert chorale(capsys, *arguments, "--split", 0).code == 2


def test_a_program_of_trees_says_what_it_loses_and_what_loses_less(capsys, tmp_path):
    trees, program = tmp_path / "trees.parquet", tmp_path / "program.xml"
    synth = ("synth", "forest", "mi250half:2", "--collective", "allgather", "--k", 1, "-o", trees)
    assert chorale(capsys, *synth).code == 0
    arguments = ("lower", trees, "--target", "msccl-xml", "-o", program, "--json", "--size", "16MiB")
    asked = chorale(capsys, *arguments, "--channels", 1).document
    loss = asked["loss"]["part"]
    assert loss > 0.15
    assert asked["loss"]["size_bytes"] == 2**24
    words = asked["advice"].split("; ")
    assert words[0] == f"loses {loss:.0%} at 16MiB against the cost of the schedule (flow model, no latencies)"
    options, _, better = words[1].partition(" loses ")
    done = chorale(capsys, *arguments, *options.split()).document
    assert f"{done['loss']['part']:.0%}" == better
    assert done["loss"]["part"] < loss - 0.05


@pytest.fixture(params=["msccl-xml", "mscclpp-json"])
def pair(request, files):
    return files(target=request.param)


def test_a_right_program_has_the_loads_and_the_cost_of_its_schedule(capsys, pair):
    schedule, program = (chorale(capsys, "verify", file, "--json").document for file in pair)
    assert program["ok"] is True
    assert program["cost"]["time_per_byte"] == schedule["cost"]["time_per_byte"] == "7/12"
    assert program["link_loads"].items() <= schedule["link_loads"].items()
    assert chorale(capsys, "verify", pair[1], "--spec", "hypercube:3").code == 0
    _, program = pair
    order = chorale(capsys, "verify", program, "--json").document["order_of_additions"]
    assert (order["fixed"], order["same_on_all_ranks"]) == (True, True)
    assert chorale(capsys, "lift", program, "--spec", "hypercube:3", "--json").document["order_of_additions"] == order


def test_a_damaged_program_is_exit_code_1(capsys, pair):
    _, program = pair
    assert chorale(capsys, "lift", program, "--spec", "ring:8").code == 0  # sends without a link are legal
    done = chorale(capsys, "lift", program, "--spec", "ring:5", "--json")
    assert (done.code, done.document["violations"][0]["rule"]) == (1, "ranks")
    text, again = program.read_text(), program.with_name("again")
    program.write_text(text.replace('type="rrc"', 'type="r"', 1).replace('"name": "nop"', '"name": "wait"', 1))
    for command in (("verify", program), ("lift", program, "--spec", "hypercube:3", "-o", again)):
        done = chorale(capsys, *command, "--json")
        assert (done.code, done.document["ok"], done.document.get("cost")) == (1, False, None)
        assert {"rule", "message"} == set(done.document["violations"][0])
        assert chorale(capsys, *command).code == 1
    assert not again.exists()


def test_a_program_that_names_no_network_is_judged_alone(capsys, pair):
    schedule, program = pair
    program.write_text(program.read_text().replace("allreduce bfb hypercube:3", "mine"))
    for command in ("verify", "lift"):
        alone = chorale(capsys, command, program, "--json").document
        assert (alone["ok"], alone["network"]) == (True, None)
        assert "all pairs of ranks are assumed to be connected" in alone["notices"][-1]["message"]
    assert alone["predicted"] is None
    assert chorale(capsys, "verify", program, "--spec", "hypercube:3").code == 0
    assert chorale(capsys, "verify", program, "--spec", "ring:5").code == 1
    assert "leave it out" in chorale(capsys, "verify", schedule, "--spec", "hypercube:3", code=2).stderr


def written(tmp_path, collective: str, program: str) -> tuple[str, str]:
    (tmp_path / "collective.yaml").write_text(collective)
    (tmp_path / "program.xml").write_text(program)
    return str(tmp_path / "program.xml"), str(tmp_path / "collective.yaml")


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_are_right(tmp_path, capsys, name):
    program, collective = written(tmp_path, *PROGRAMS[name])
    for command in ("lift", "verify"):
        done = chorale(capsys, command, program, "--spec", "complete:3", "--collective-file", collective, "--json")
        assert (done.code, json.loads(done.stdout)["violations"]) == (0, [])


def test_what_is_wrong_with_a_program_is_named_by_rank_and_chunk(tmp_path, capsys):
    def violations(command: str, collective: str, program: str) -> list[dict[str, str]]:
        path, collective = written(tmp_path, collective, program)
        words = (command, path, "--spec", "complete:3", "--collective-file", collective, "--json")
        done = chorale(capsys, *words)
        assert done.code == (1 if done.document["violations"] else 0)
        return done.document["violations"]

    into_scratch = scan_program([("rrc", "i", 0, "s", 0, 1), ("rrc", "i", 1, "o", 1, 1)], at_once=1)
    first = violations("lift", SCAN, into_scratch)[0]
    whole = "i[0] of rank 0 + i[0] of rank 1 + i[0] of rank 2"
    assert first["message"] == f"rank 2: o[0] holds nothing, must hold {whole}"
    twice = scan_program(last=[("rrc", "i", 0, "o", 0, 2), ("re", "i", 0, "o", 0, 2)])
    assert [each["rule"] for each in violations("lift", SCAN, twice)] == ["reduction"]
    other = SCAN.replace("_chunks: 2", "_chunks: 3").replace("ranks: 3", "ranks: 4")
    assert [each["rule"] for each in violations("verify", other, scan_program())][:2] == ["ranks", "chunks"]
    halo = violations("verify", SHIFT, shift_program("halo"))
    assert [each["message"] for each in halo] == ['the loader knows no coll="halo"']
    refused = chorale(capsys, "verify", tmp_path / "program.xml", "--spec", "complete:3", code=2)
    assert "add --collective-file FILE" in refused.stderr
    finer = SCAN.replace("count: 2, ", "").replace("_chunks: 2", "_chunks: 1")
    assert violations("verify", finer, scan_program()) == []


WRONG = {
    "format: chorale-collective/2": ("format: chorale-collective/1", "unknown format of a collective file"),
    "input_chunks: 0": ("input_chunks: 2", "input_chunks must be a whole number from 1"),
    "from: 7": ("from: 0", "from must be a rank below 3, a list of ranks, or all"),
    "chunk: 1": ("chunk: 0", "outputs must be of 3 ranks and 2 chunks"),
    "rank: 1": ("rank: 0", "outputs must be named once each"),
    "from: [0, 0]": ("from: [0, 1]", "a sum contains a chunk twice"),
    "frm: 0": ("from: 0", "has no key"),
    "sum: 3": ("from: 0", "`sum` must be a list of {rank, chunk}, without source"),
    "source: 5, from: 0": ("from: 0", "sources must be of 3 ranks and 2 input chunks"),
    "[": ("ranks: 3", "must be YAML or JSON"),
}


def test_wrong_files_are_refused_with_the_rule_and_right_ones_survive_json():
    for after, (before, message) in WRONG.items():
        with pytest.raises(InvalidInput, match=re.escape(message)):
            parse_collective_file(SCAN.replace(before, after, 1))
    for text, _ in PROGRAMS.values():
        collective = parse_collective_file(text)
        assert CustomCollective.from_json(json.loads(json.dumps(collective.to_json()))) == collective
