"""Which settings go together, by collective, version and library; and what recorded logs say of them."""

import re
from pathlib import Path

import pytest

from chorale.runners.nccl.log import ignored_notices, logged_calls, not_applied
from chorale.runners.nccl.parameters import (
    ALGORITHMS,
    PARAMETERS_SINCE,
    SYMMETRIC,
    SYMMETRIC_SINCE,
    call_config,
    library_names,
    process_variables,
    settings_fault,
    settings_named,
    tuner_row,
)
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.library_call import (
    LibraryCall,
    LibrarySettings,
    is_library_text,
    library_call_text,
    parse_library_call,
)

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "nccl-parameters.md"


@pytest.mark.parametrize(
    ("collective", "settings", "version", "is_rccl", "reason"),
    [
        ("allreduce", LibrarySettings("ring", "LL", 4, 4096), (2, 30), False, None),
        ("allreduce", LibrarySettings("ring", "LL", 4, 4096), (2, 29), False, "chunk_bytes needs NCCL 2.30"),
        ("allreduce", LibrarySettings("nvls", "LL"), None, False, "nvls runs with Simple"),
        ("allreduce", LibrarySettings("pat", "Simple"), None, False, "pat has no allreduce"),
        ("allgather", LibrarySettings("pat", "Simple"), (2, 22), False, "pat needs NCCL 2.23"),
        ("allgather", LibrarySettings("tree", "LL"), None, False, "tree has no allgather"),
        ("allreduce", LibrarySettings("nvls", "Simple"), None, True, "RCCL has no nvls"),
        ("allreduce", LibrarySettings("symmetric"), (2, 32), False, None),
        ("broadcast", LibrarySettings("symmetric"), (2, 32), False, "symmetric kernels are for"),
        ("allreduce", LibrarySettings("symmetric", buffer_bytes=1), None, False, "neither chunks nor buffers"),
        ("allreduce", LibrarySettings("ring", "LL", ctas=65), None, False, "NCCL has at most 64"),
        ("allreduce", LibrarySettings("ring", "LL", ctas=112), None, True, None),
        ("allreduce", LibrarySettings("ring", "LL", ctas=257), None, True, "RCCL has at most 256"),
        ("allreduce", LibrarySettings("ring", "LL", threads=100), None, False, "threads must be one of"),
        ("allreduce", LibrarySettings("ring", "LL", cta_policy="most"), None, False, "a CTA policy is"),
    ],
)
def test_settings_that_cannot_go_together_say_why(collective, settings, version, is_rccl, reason):
    found = settings_fault(CollectiveName(collective), settings, version, is_rccl)
    assert found is None if reason is None else reason in str(found)


def test_names_are_settings_which_become_rows_and_variables():
    assert settings_named("nccl") is None
    assert settings_named("nccl:ring:LL") == LibrarySettings("ring", "LL")
    assert settings_named("nccl:symmetric") == LibrarySettings("symmetric")
    for name in library_names("allgather")[1:]:
        assert settings_fault(CollectiveName.ALLGATHER, settings_named(name)) is None
    for wrong in ("nccl:star", "nccl:ring:ll", "ring", "nccl:ring:LL:8"):
        with pytest.raises(InvalidInput, match="NCCL has no algorithm '"):
            settings_named(wrong)
    settings = LibrarySettings("nvls_tree", "Simple", 8, 2**17, 2**23, 256)
    assert tuner_row("allreduce", settings, 16, 1, 2).endswith("1,2,nvls_tree,simple,8,-1,16,-1,-1,131072")
    assert process_variables(settings) == {"NCCL_BUFFSIZE": "8388608", "NCCL_NTHREADS": "256"}
    assert process_variables(LibrarySettings("ring", "LL128", buffer_bytes=9)) == {"NCCL_LL128_BUFFSIZE": "9"}
    assert tuner_row("allreduce", LibrarySettings("symmetric"), 4) is None
    assert tuner_row("alltoall", LibrarySettings("ring"), 4) is None


REGISTRY = (
    "TREE_LL", "TREE_LL128", "TREE_SIMPLE", "RING_LL", "RING_LL128", "RING_SIMPLE", "COLLNET_DIRECT_SIMPLE",
    "COLLNET_CHAIN_SIMPLE", "NVLS_SIMPLE", "NVLSTREE_SIMPLE", "PAT_SIMPLE", "SYMK_AGxLL_R", "SYMK_RailRing_LsaSTMC",
)  # fmt: skip
"""Names in libnccl.so.2 of 2.31.2 and 2.32.3. A selection takes all that begin with it: `,` or, `+` and, `^` not."""


def test_the_configuration_of_a_call_selects_one_algorithm_of_nccls_registry():
    for algorithm in ALGORITHMS.values():
        for protocol in algorithm.protocols:
            selection = str(call_config(LibrarySettings(algorithm.name, protocol))["algSelection"])
            factors = [(part.lstrip("^"), part.startswith("^")) for part in selection.split("+")]
            assert all(any(name.startswith(tag) for name in REGISTRY) for tag, _ in factors)
            taken = [name for name in REGISTRY if all(name.startswith(tag) is not is_not for tag, is_not in factors)]
            assert taken == [f"{algorithm.name}_{protocol}".upper().replace("NVLS_TREE", "NVLSTREE")]
    assert call_config(LibrarySettings("symmetric", ctas=8, cta_policy="zero")) == {
        "algSelection": "SYMK", "maxCTAs": 8, "CTAPolicy": 2,
    }  # fmt: skip


def test_a_librarys_call_is_read_back():
    call = LibraryCall(Collective(CollectiveName.REDUCE, 2), 4, False, LibrarySettings("ring", "LL", 3))
    text = library_call_text(call).encode()
    assert is_library_text(text)
    assert parse_library_call(text) == call
    for wrong in (
        b'{"format": "chorale-library/1"}',
        text.replace(b'"ring"', b"7"),
        text.replace(b'"ranks": 4', b'"ranks": 0'),
        text[:-4],
    ):
        with pytest.raises(InvalidInput):
            parse_library_call(wrong)


def test_the_reference_shows_the_tables():
    text = REFERENCE.read_text()
    for each in ALGORITHMS.values():
        collectives = ", ".join(sorted(name.value for name in each.collectives))
        rest = f"{collectives} | {', '.join(each.protocols)} | {'yes' if each.of_rccl else 'no'} |"
        assert f"| `{each.name}` | {each.since[0]}.{each.since[1]} | {rest}" in text
    for name, (major, minor) in {**PARAMETERS_SINCE, SYMMETRIC: SYMMETRIC_SINCE}.items():
        assert f"| `{name}` | {major}.{minor} | " in text


LOGS = Path(__file__).parents[3] / "data" / "nccl-logs"
ALLREDUCE = CollectiveName.ALLREDUCE
NUMBERS_OF_RCCL = (("ReduceScatter", 302006272), ("AllGather", 151003136))


@pytest.mark.parametrize(
    ("version", "calls"),
    [
        ("2.22", [(None, 8589934592, "ring", "simple", None), (None, 262144, "tree", "ll128", None)]),
        ("issue-1595", [(None, 805306368, "ring", "simple", None), (None, 1026048, "ring", "simple", None)]),
        ("numbers-rccl", [(name, size, "ring", "simple", None) for name, size in NUMBERS_OF_RCCL]),
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


@pytest.mark.parametrize(
    ("version", "said"), [("2.22", "using internal tuner instead."), ("2.27.5", "Using internal tuner plugin.")]
)
def test_recorded_logs_tell_that_no_plugin_was_loaded(version, said):
    [notice] = ignored_notices((LOGS / f"{version}.txt").read_text().splitlines())
    assert notice.endswith(said)


FORMATS = {
    line.partition(" ")[0]: line.partition(" ")[2]
    for line in (LOGS / "formats.txt").read_text().splitlines()
    if not line.startswith("#")
}


def written_line(form: str) -> str:
    """Return what a library of the format `form` logs of an allreduce of 4096 bytes."""
    numbers = ["1", "1", "4"] if " Algo %d" in form else ["0", "3", "4"]
    given = {"%s": iter(["AllReduce", "RING", "LL128"]), "%d": iter(numbers), "%ld": iter(["4096"]), "%f": iter("8")}
    return "host:1:1 [0] NCCL INFO " + re.sub(r"%l?[sdf]", lambda match: next(given[match[0]]), form)


@pytest.mark.parametrize("version", FORMATS)
def test_the_formats_of_real_libraries_are_read(version):
    [call] = logged_calls([written_line(FORMATS[version])])
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
    unrelated = "host:1:1 [0] NCCL INFO Invalid value x for NCCL_RAS_TIMEOUT_FACTOR, using default 1."
    assert ignored_notices([unrelated]) == []


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
