"""`chorale table` as scripts see it."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import chorale as ch
from chorale.job.settings import load_table
from chorale.job.table.layout import require_signature, table_bytes
from tests.campaigns import small_campaign
from tests.command import Finished, chorale as command
from tests.unit.tuner.launch.test_promotion import FAST_S, WithLibrary, library_campaign as with_library
from tests.unit.tuner.launch.test_tuning import NOWHERE, run

Capture = pytest.CaptureFixture[str]
ENTRY_KEYS = {"collective", "dtype", "group", "min_bytes", "max_bytes", "program", "measured", "certificate"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    for collective in ("allreduce", "allgather"):
        schedule = ch.synthesize("ring:4", collective, method="bfb")
        (folder / f"{collective}.xml").write_text(ch.lower(schedule, "oneccl-xml").text)
    (folder / "biring.xml").write_text(ch.lower(ch.synthesize("ring:4", "allreduce", method="biring")).text)
    (folder / "plan.json").write_text(ch.lower(ch.synthesize("ring:4", "allreduce", "ring"), "mscclpp-json").text)
    (folder / "two.xml").write_text(ch.lower(ch.synthesize("complete:2", "allreduce", method="ring")).text)
    return folder


def write(capsys: Capture, output: Path, *arguments: object) -> dict[str, Any]:
    return command(capsys, "table", "write", *arguments, "-o", output, "--json", code=0).document


def refused(capsys: Capture, *arguments: object) -> Finished:
    finished = command(capsys, "table", "write", *arguments, "-o", os.devnull)
    assert finished.code in (1, 2)
    assert finished.stderr.count("\n") == 1
    return finished


def test_a_schedule_is_lowered_on_the_way(capsys, tmp_path):
    command(capsys, "synth", "bfb", "ring:4", "-o", tmp_path / "s.parquet")
    document = write(capsys, tmp_path / "t", tmp_path / "s.parquet", "--sizes", "1KiB-")
    (entry,) = document["entries"]
    assert (document["topology"]["spec"], entry["certificate"]["gap"]) == ("ring:4", "0")
    assert command(capsys, "table", "verify", tmp_path / "t").code == 0
    finished = refused(capsys, tmp_path / "s.parquet", "--sizes", "1KiB-", "--topology", "complete:4")
    assert "must be the topology of the schedule" in finished.stderr


def test_programs_become_a_table_that_verifies(capsys, desk, tmp_path):
    out = tmp_path / "t"
    files = (desk / "allreduce.xml", desk / "allgather.xml")
    document = write(capsys, out, *files, "--sizes", "1KiB-64MiB")
    assert document["format"] == "chorale-table/1"
    assert (document["ranks"], document["topology"]["spec"]) == (4, "ring:4")
    assert [entry["collective"] for entry in document["entries"]] == ["allgather", "allreduce"]
    for entry in document["entries"]:
        assert entry.keys() >= ENTRY_KEYS
        assert (entry["dtype"], entry["min_bytes"], entry["max_bytes"]) == ("any", 1024, 2**26)
        assert entry["certificate"]["gap"] == "0"
        assert document["programs"][entry["program"]].keys() >= {"target", "method", "parameters"}
    assert set(document["programs"]) == {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    shown = command(capsys, "table", "show", out, "--json").document
    assert shown == {key: value for key, value in document.items() if key != "output"}
    assert shown["digest"] == out.read_bytes().split(b"\n")[1].split()[-1].decode()
    verified = command(capsys, "table", "verify", out, "--json")
    assert (verified.code, verified.document["ok"], verified.document["links"]) == (0, True, "checked")
    assert "allgather" in command(capsys, "table", "show", out).stdout
    write(capsys, tmp_path / "again", *files, "--sizes", "1KiB-64MiB")
    assert (tmp_path / "again").read_bytes() == out.read_bytes()
    document = write(capsys, tmp_path / "plan", desk / "plan.json", "--sizes", "1KiB-64MiB")
    ((digest, program),) = document["programs"].items()
    assert digest == hashlib.sha256((desk / "plan.json").read_bytes()).hexdigest()
    assert (program["target"], program["method"], program["ranks"]) == ("mscclpp-json", "ring", 4)
    assert document["entries"][0]["certificate"]["achieved"] == "3/4"
    assert command(capsys, "table", "verify", tmp_path / "plan").code == 0
    assert "plan ring" in command(capsys, "table", "show", tmp_path / "plan").stdout


def test_a_group_of_a_larger_job(capsys, desk, tmp_path):
    sizes = ("--sizes", "64KiB-")
    table = write(capsys, tmp_path / "a", desk / "allreduce.xml", *sizes, "--group", "0,2,4,6", "--ranks", 8)
    assert (table["ranks"], table["entries"][0]["group"], table["topology"]) == (8, [0, 2, 4, 6], {})
    on = ("--group", "6,4,2,0", "--topology", "ring:8")
    placed = write(capsys, tmp_path / "b", desk / "allreduce.xml", *sizes, *on)
    assert (placed["ranks"], placed["topology"]["spec"], placed["entries"][0]["group"]) == (8, "ring:8", [6, 4, 2, 0])
    assert command(capsys, "table", "verify", tmp_path / "b", "--json").document["links"] == "checked"
    everybody = write(capsys, tmp_path / "c", desk / "allreduce.xml", *sizes, "--group", "0,1,2,3")
    assert everybody["entries"][0]["group"] is None
    merged = command(capsys, "table", "merge", *(tmp_path / name for name in "ab"), "-o", tmp_path / "m", "--json")
    assert merged.code == 0
    assert [entry["group"] for entry in merged.document["entries"]] == [[0, 2, 4, 6], [6, 4, 2, 0]]


def test_damaged_files_do_not_verify_and_differences_have_exit_code_1(capsys, desk, tmp_path):
    write(capsys, tmp_path / "t", desk / "allreduce.xml", "--sizes", "-")
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-1])
    assert command(capsys, "table", "verify", tmp_path / "t", "--json", code=1).document["ok"] is False
    assert command(capsys, "table", "show", tmp_path / "t").code == 2
    assert command(capsys, "table", "verify", desk / "allreduce.xml").code == 2
    write(capsys, tmp_path / "a", desk / "allreduce.xml", "--sizes", "1KiB-1MiB")
    write(capsys, tmp_path / "b", desk / "biring.xml", "--sizes", "64KiB-1MiB")
    same = command(capsys, "table", "diff", tmp_path / "a", tmp_path / "a", "--json")
    assert (same.code, same.document["equal"], same.document["changes"]) == (0, True, [])
    different = command(capsys, "table", "diff", tmp_path / "a", tmp_path / "b", "--json")
    assert (different.code, different.document["equal"]) == (1, False)
    sizes = [(1024, 65535), (65536, 2**20)]
    assert [(change["min_bytes"], change["max_bytes"]) for change in different.document["changes"]] == sizes
    assert "What differs" in command(capsys, "table", "diff", tmp_path / "a", tmp_path / "b").stdout
    files = (tmp_path / "a", tmp_path / "b")
    assert "--prefer" in command(capsys, "table", "merge", *files, "-o", tmp_path / "m", code=2).stderr
    merged = command(capsys, "table", "merge", *files, "--prefer", "last", "-o", tmp_path / "m", "--json").document
    assert [(entry["min_bytes"], entry["max_bytes"]) for entry in merged["entries"]] == sizes
    assert command(capsys, "table", "verify", tmp_path / "m").code == 0


def test_what_nobody_measured_is_predicted(capsys, home, tmp_path):
    del home  # its registry has nothing for this network
    written = command(
        capsys, "table", "write", "--topology", "ring:4", "--link-gbps", 80, "-o", tmp_path / "t", "--json"
    )
    assert written.document["provenance"]["source"] == "predicted"
    assert command(capsys, "table", "verify", tmp_path / "t", "--json").document["ok"]
    entries = [entry for entry in written.document["entries"] if entry["collective"] == "allreduce"]
    assert (entries[0]["min_bytes"], entries[-1]["max_bytes"]) == (0, None)
    assert all(entry["measured"] is None for entry in entries)
    [*_, largest] = entries[-1]["provenance"]["sizes"]
    assert largest["time_us"] == pytest.approx(2**30 * 2 * 3 / 4 / 20e9 * 1e6, rel=1e-3)


def test_a_campaign_and_the_registry_say_the_same_and_changed_programs_are_refused(capsys, home, tmp_path, monkeypatch):
    report = run(home)
    table = write(capsys, tmp_path / "c", "--campaign", "small")
    (entry,) = table["entries"]
    assert (entry["collective"], entry["dtype"], entry["group"]) == ("allreduce", "float32", None)
    assert (entry["min_bytes"], entry["max_bytes"]) == (4096, 2**17 - 1)
    assert [size["size_bytes"] for size in entry["measured"]["sizes"]] == [4096, 65536]
    for size in entry["measured"]["sizes"]:
        low, high = size["time_us_interval"]
        assert low <= size["time_us"] <= high
        assert size["speedup_vs_baseline"] == pytest.approx(2.0)
    assert (entry["certificate"]["gap"], entry["provenance"]["campaign"]) == ("0", "small")
    assert entry["provenance"]["trial_id"] in report.tracked.run_ids
    assert table["programs"][entry["program"]]["method"] == "bfb"
    assert table["programs"][entry["program"]]["parameters"]["method"] == "bfb"
    assert command(capsys, "table", "verify", tmp_path / "c").code == 0
    registered = write(capsys, tmp_path / "r", "--topology", "ring:4")
    ranges = [(one["min_bytes"], one["max_bytes"]) for one in registered["entries"]]
    assert ranges == [(4096, 65535), (65536, 2**17 - 1)]  # all sizes of the campaign, also those between the classes
    for one in registered["entries"]:
        assert one["program"] == entry["program"]
        assert one["provenance"]["version"] == "1"
        assert one["provenance"]["run_id"] == report.tracked.run_ids[entry["provenance"]["trial_id"]]
        assert one["measured"]["sizes"][0].keys() >= {"time_us", "time_us_interval", "confidence"}
    assert command(capsys, "table", "verify", tmp_path / "r").code == 0
    everywhere = write(capsys, tmp_path / "b", "--campaign", "small", "--beyond")
    assert [(one["min_bytes"], one["max_bytes"]) for one in everywhere["entries"]] == [(0, None)]
    run(home, small_campaign(name="more", collective="allgather", search={"methods": ["bfb"]}))
    both = write(capsys, tmp_path / "t", "--topology", "ring:4", "--dtypes", "any")
    assert [(one["collective"], one["min_bytes"], one["dtype"]) for one in both["entries"]] == [
        (collective, size, "any") for collective in ("allgather", "allreduce") for size in (4096, 65536)
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    command(capsys, "table", "write", "--campaign", "small", "-o", tmp_path / "n", "--json", code=0)
    for file in (report.folder / "programs").iterdir():
        file.write_text(file.read_text().replace('type="rrc"', 'type="r"'))
    finished = command(capsys, "table", "write", "--campaign", "small", "-o", tmp_path / "changed", code=1)
    assert "a program must compute its collective correctly" in finished.stderr
    assert not (tmp_path / "changed").exists()


def test_the_library_has_the_sizes_at_which_it_is_faster(capsys, home, tmp_path):
    """Also at one size of a class only, of the registry and of the campaign."""
    run(home, with_library(sizes=[4096, 6144]), runner=WithLibrary(FAST_S))
    for source in (("--campaign", "small"), ("--topology", "ring:4")):
        library, program = write(capsys, tmp_path / "t", *source)["entries"]
        assert (library["min_bytes"], library["max_bytes"], library["program"]) == (4096, 6143, None)
        assert (program["min_bytes"], program["max_bytes"]) == (6144, 8191)
        assert program["program"] is not None
        assert library["provenance"]["baseline"] == "library:tree"
        assert library["measured"]["sizes"][0]["time_us"] == pytest.approx(FAST_S * 1e6)


def test_every_collective_can_be_in_a_table(capsys, tmp_path):
    swapped = ch.lower(ch.synthesize("ring:4", "alltoall", "alltoall"), "oneccl-xml", in_place=False)
    rooted = {name: ch.synthesize("ring:4", name, "forest", root=2) for name in ("broadcast", "reduce")}
    programs = {name: ch.lower(schedule, "msccl-executor-xml") for name, schedule in rooted.items()}
    for collective, program in {**programs, "alltoall": swapped}.items():
        (tmp_path / "p.xml").write_text(program.text)
        (entry,) = write(capsys, tmp_path / "t", tmp_path / "p.xml", "--sizes", "4KiB-")["entries"]
        assert (entry["collective"], entry["root"]) == (collective, None if collective == "alltoall" else 2)
        assert command(capsys, "table", "verify", tmp_path / "t").code == 0


def test_a_table_is_signed_with_the_key_of_the_jobs(desk, capsys, tmp_path, monkeypatch):
    arguments = (desk / "allreduce.xml", "--sizes", "1KiB-", "--sign")
    assert "CHORALE_TABLE_KEY" in refused(capsys, *arguments).stderr
    (tmp_path / "key").write_text("7" * 32)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("CHORALE_TABLE_KEY", str(tmp_path / "key"))
    write(capsys, tmp_path / "signed", *arguments)
    require_signature((tmp_path / "signed").read_bytes(), b"7" * 32)
    assert command(capsys, "table", "verify", tmp_path / "signed").code == 0


def test_an_export_says_what_was_not_measured(capsys, home, tmp_path):
    (tmp_path / "ring.xml").write_text(ch.lower(ch.synthesize("ring:4", "allreduce", "ring"), "msccl-xml").text)
    write(capsys, tmp_path / "given", tmp_path / "ring.xml", "--sizes", "64KiB-")
    run(home, small_campaign(name="modelled", search={"methods": ["ring"], "channels": [4]}))
    write(capsys, tmp_path / "simulated", "--campaign", "modelled")
    for name in ("given", "simulated"):
        exported = command(capsys, "table", "export", tmp_path / name, "--for", "nccl", "-o", tmp_path / "t.csv")
        assert exported.code == 0, exported.stderr
        assert "the entry was not measured but simulated, predicted or given: compare" in exported.stderr
        assert ",ring,simple,0,-1,4," in (tmp_path / "t.csv").read_text()
    table = load_table(tmp_path / "given")
    measured = replace(table, entries=tuple(replace(each, measured={"runner": "nccl"}) for each in table.entries))
    (tmp_path / "measured").write_bytes(table_bytes(measured))
    exported = command(capsys, "table", "export", tmp_path / "measured", "--for", "nccl", "-o", tmp_path / "t.csv")
    assert (exported.code, exported.stderr) == (0, "")
