"""What recorded logs say, version by version, and what counts as not applied."""

import re
from pathlib import Path

import pytest

from chorale.runners.nccl.log import ignored_notices, logged_calls, not_applied
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.library_call import LibrarySettings

LOGS = Path(__file__).parents[3] / "data" / "nccl-logs"
ALLREDUCE = CollectiveName.ALLREDUCE


@pytest.mark.parametrize(
    ("version", "calls"),
    [
        ("2.22", [(None, 8589934592, "ring", "simple", None), (None, 262144, "tree", "ll128", None)]),
        ("issue-1595", [(None, 805306368, "ring", "simple", None), (None, 1026048, "ring", "simple", None)]),
        (
            "numbers-rccl",
            [("ReduceScatter", 302006272, "ring", "simple", None), ("AllGather", 151003136, "ring", "simple", None)],
        ),
        ("numbers-fsdp", [("AllGather", 37756928, "ring", "simple", None)]),
        ("2.29.7", [("Broadcast", 32768, "ring", "simple", 1), ("Broadcast", 131072, "ring", "simple", 4)]),
        ("2.27.5", [("AllReduce", 4, "tree", "ll", 1), ("AllReduce", 4, "ring", "simple", 1)]),
        (
            "2.30.7",
            [
                ("AllReduce", 4096, "ring", "ll", 1),
                ("AllReduce", 1048576, "ring", "ll", 24),
                ("AllReduce", 2097152, "nvls", "simple", 16),
            ],
        ),
        ("rccl", [("AllGather", 2**24, "ring", "simple", 16), ("AllGather", 2**24, "copy engine", None, None)]),
        ("symmetric", [("AllReduce", 2097152, "symmetric", None, 16)]),
    ],
)
def test_recorded_logs_tell_their_calls(version, calls):
    found = logged_calls((LOGS / f"{version}.txt").read_text().splitlines())
    assert [(one.collective, one.size_bytes, one.algorithm, one.protocol, one.channels) for one in found] == calls


def test_recorded_logs_tell_that_no_plugin_was_loaded():
    [notice] = ignored_notices((LOGS / "2.22.txt").read_text().splitlines())
    assert notice.endswith("using internal tuner instead.")
    [notice] = ignored_notices((LOGS / "2.27.5.txt").read_text().splitlines())
    assert notice.endswith("Using internal tuner plugin.")


FORMATS = {
    line.partition(" ")[0]: line.partition(" ")[2]
    for line in (LOGS / "formats.txt").read_text().splitlines()
    if not line.startswith("#")
}


@pytest.mark.parametrize("version", FORMATS)
def test_the_formats_of_real_libraries_are_read(version):
    given = {"%s": iter(["AllReduce", "RING", "LL128"]), "%d": iter(["1", "1", "4"])}
    given = given if " Algo %d" in FORMATS[version] else given | {"%d": iter(["0", "3", "4"])}
    given |= {"%ld": iter(["4096"]), "%f": iter(["8.5"])}
    [call] = logged_calls(["NCCL INFO " + re.sub(r"%l?[sdf]", lambda match: next(given[match[0]]), FORMATS[version])])
    assert (call.size_bytes, call.algorithm, call.protocol) == (4096, "ring", "ll128")
    assert (call.collective, call.channels) in (("AllReduce", 4), (None, None))


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO Tuner: failed to find ncclTunerPlugin_v1 in plugin (x), using default tuner instead.",  # 2.19.3
        "NCCL INFO TUNER/Plugin: Could not find:x. Using internal tuner plugin.",  # 2.22.3
        "NCCL WARN Error : no algorithm/protocol available",  # 2.22.3
        "NCCL WARN Error : no algorithm/protocol available for function AllReduce with datatype ncclFloat32.",  # 2.25.1
        "NCCL INFO AllReduce: tuner chunk size 9 exceeds buffer max 8, clamping",  # 2.30.7
        "NCCL INFO Config maxCTAs=65 is ignored because value out of bound min/max=[1, 64]",  # 2.31.2
        'NCCL INFO config->algSelection "x" cannot be honored for AllReduce; falling back to automatic selection',
        "NCCL INFO algSelection: selected set unavailable for AllReduce; falling back to automatic selection",  # 2.31.2
        "NCCL WARN algSelection: no algorithm in the selected set is available for AllReduce",  # 2.31.2
        "NCCL INFO Invalid value x for NCCL_NTHREADS, using default -2.",  # all
        "NCCL WARN TUNER/CsvTuner: Ignoring invalid channel count 0 for allreduce, bytes=9",  # RCCL
    ],
)
def test_notices_of_settings_that_are_ignored_are_found(text):
    assert ignored_notices([f"host:1:1 [0] {text}"]) == [text.removeprefix("NCCL INFO ").removeprefix("NCCL WARN ")]


def test_an_unrelated_variable_is_no_setting_that_is_ignored():
    assert (
        ignored_notices(["host:1:1 [0] NCCL INFO Invalid value x for NCCL_RAS_TIMEOUT_FACTOR, using default 1."]) == []
    )


def line(what: str) -> list[str]:
    return [f"host:1:1 [0] NCCL INFO AllReduce: {what}"]


def ran(size_bytes: int = 4096, algorithm: str = "RING", last: int = 3, more: str = "") -> list[str]:
    return line(f"{size_bytes} Bytes -> Algo {algorithm} proto LL channel{{Lo..Hi}}={{0..{last}}}{more}")


CLAMPED = line("tuner chunk size 99 exceeds buffer max 9, clamping")
INVALID = ["host:1:1 [0] NCCL INFO Invalid value 1x for NCCL_LL_BUFFSIZE, using default -2."]


@pytest.mark.parametrize(
    ("settings", "log", "reason"),
    [
        ({}, ran(), None),
        ({}, ran(more=" cgaClusterSize 4"), None),
        ({}, ran(algorithm="TREE"), "tree ll 4 channels ran at 4096 bytes, not ring ll"),
        ({}, ran(8), "does not say what ran"),
        ({}, [], "does not say what ran"),
        ({"ctas": 2}, ran(), "more than 2"),
        ({"ctas": 224}, ran(last=111), "fewer than 224"),
        ({"chunk_bytes": 1}, ran(), "did not ask for the size of chunks"),
        ({"chunk_bytes": 1}, CLAMPED + ran(), "tuner chunk size 99 exceeds"),
        ({"buffer_bytes": 1}, INVALID + ran(), "Invalid value 1x for NCCL_LL_BUFFSIZE"),
    ],
)
def test_what_the_log_does_not_show_is_not_applied(settings, log, reason):
    found = not_applied(LibrarySettings("ring", "LL", **settings), ALLREDUCE, [4096], [log])
    assert found is None if reason is None else reason in str(found)


def test_channels_must_be_reached_at_one_size():
    logs = [ran(1024, last=0), ran(last=7)]
    assert not_applied(LibrarySettings("ring", "LL", 8), ALLREDUCE, [1024, 4096], logs) is None
