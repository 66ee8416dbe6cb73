"""What recorded logs say, version by version, and what counts as not applied."""

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


def line(what: str) -> list[str]:
    return [f"host:1:1 [0] NCCL INFO AllReduce: {what}"]


@pytest.mark.parametrize(
    ("settings", "logs", "reason"),
    [
        ({"protocol": "LL"}, [line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}")], None),
        (
            {"protocol": "LL"},
            [line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3} cgaClusterSize 4")],
            None,
        ),
        (
            {"protocol": "LL"},
            [line("4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}")],
            "tree ll 4 channels ran at 4096 bytes, not ring ll",
        ),
        ({"protocol": "LL"}, [line("8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}")], "does not tell what ran"),
        ({"protocol": "LL"}, [[]], "does not tell what ran"),
        (
            {"protocol": "LL", "ctas": 2},
            [line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}")],
            "more than 2",
        ),
        (
            {"protocol": "LL", "ctas": 224},
            [line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..111}")],
            "fewer than 224",
        ),
        (
            {"protocol": "LL", "chunk_bytes": 1},
            [
                line("tuner chunk size 99 exceeds buffer max 9, clamping")
                + line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}")
            ],
            "tuner chunk size 99 exceeds",
        ),
        (
            {"protocol": "LL", "buffer_bytes": 1},
            [
                [
                    "host:1:1 [0] NCCL INFO Invalid value 1x for NCCL_LL_BUFFSIZE, using default -2.",
                    *line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"),
                ]
            ],
            "Invalid value 1x for NCCL_LL_BUFFSIZE",
        ),
    ],
)
def test_what_the_log_does_not_show_is_not_applied(settings, logs, reason):
    found = not_applied(LibrarySettings("ring", **settings), ALLREDUCE, [4096], logs)
    assert found is None if reason is None else reason in str(found)


def test_channels_must_be_reached_at_one_size():
    logs = [
        line("1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"),
        line("4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}"),
    ]
    assert not_applied(LibrarySettings("ring", "LL", 8), ALLREDUCE, [1024, 4096], logs) is None
