"""Programs for collectives that no library has are checked and run against a file that says what must be where."""

import json

import pytest

from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.collective_files import parse_collective_file
from tests.command import chorale
from tests.custom_programs import PROGRAMS, SCAN, SHIFT, scan_program, shift_program


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


def test_a_program_that_cuts_chunks_further_is_right(tmp_path, capsys):
    finer = SCAN.replace("count: 2, ", "").replace("_chunks: 2", "_chunks: 1")
    program, collective = written(tmp_path, finer, scan_program())
    done = chorale(capsys, "verify", program, "--spec", "complete:3", "--collective-file", collective)
    assert done.code == 0, done.stderr


def test_what_is_missing_is_named_by_rank_and_chunk(tmp_path, capsys):
    into_scratch = scan_program([("rrc", "i", 0, "s", 0, 1), ("rrc", "i", 1, "o", 1, 1)], at_once=1)
    program, collective = written(tmp_path, SCAN, into_scratch)
    done = chorale(capsys, "lift", program, "--spec", "complete:3", "--collective-file", collective, "--json")
    whole = "i[0] of rank 0 + i[0] of rank 1 + i[0] of rank 2"
    assert done.code == 1
    assert done.document["violations"][0]["message"] == f"rank 2: o[0] holds nothing, must hold {whole}"
    assert f"{whole} got as far as s[0] of rank 2" in done.document["explanations"][0]["text"]


def test_an_own_contribution_twice_is_a_wrong_sum(tmp_path, capsys):
    twice = scan_program(last=[("rrc", "i", 0, "o", 0, 2), ("re", "i", 0, "o", 0, 2)])
    program, collective = written(tmp_path, SCAN, twice)
    done = chorale(capsys, "lift", program, "--spec", "complete:3", "--collective-file", collective, "--json")
    document = json.loads(done.stdout)
    assert [each["rule"] for each in document["violations"]] == ["reduction"]
    assert document["explanations"][0]["text"].startswith("i[0] of rank 2 is in both summands")


def test_another_name_of_the_file_is_overridden_and_the_loader_named(tmp_path, capsys):
    program, collective = written(tmp_path, SHIFT, shift_program("halo"))
    done = chorale(capsys, "verify", program, "--spec", "complete:3")
    assert done.code == 2
    assert "add --collective-file FILE" in done.stderr
    done = chorale(capsys, "verify", program, "--spec", "complete:3", "--collective-file", collective, "--json")
    assert [each["message"] for each in json.loads(done.stdout)["violations"]] == ['the loader knows no coll="halo"']


def test_ranks_and_chunks_must_fit(tmp_path, capsys):
    program, collective = written(
        tmp_path, SCAN.replace("_chunks: 2", "_chunks: 3").replace("ranks: 3", "ranks: 4"), scan_program()
    )
    done = chorale(capsys, "verify", program, "--spec", "complete:3", "--collective-file", collective, "--json")
    assert [each["rule"] for each in json.loads(done.stdout)["violations"]][:2] == ["ranks", "chunks"]


WRONG = {
    "format: chorale-collective/2": ("format: chorale-collective/1", "unknown format of a collective file"),
    "input_chunks: 0": ("input_chunks: 2", "input_chunks must be a whole number from 1"),
    "from: 7": ("from: 0", "from must be a rank below 3, a list of such, or all"),
    "chunk: 1": ("chunk: 0", "outputs must be of 3 ranks and 2 chunks"),
    "rank: 1": ("rank: 0", "outputs must be named once each"),
    "from: [0, 0]": ("from: [0, 1]", "a sum contains a chunk twice"),
    "frm: 0": ("from: 0", "has no key"),
    "sum: 3": ("from: 0", "`sum` must be a list of {rank, chunk}, without source"),
    "source: 5, from: 0": ("from: 0", "sources must be of 3 ranks and 2 input chunks"),
    "[": ("ranks: 3", "must be YAML or JSON"),
}


@pytest.mark.parametrize("after", WRONG)
def test_wrong_files_are_refused_with_the_rule(after):
    before, message = WRONG[after]
    with pytest.raises(InvalidInput, match=message.replace("[", r"\[")):
        parse_collective_file(SCAN.replace(before, after, 1))


def test_a_collective_survives_json():
    for text, _ in PROGRAMS.values():
        collective = parse_collective_file(text)
        assert CustomCollective.from_json(json.loads(json.dumps(collective.to_json()))) == collective
