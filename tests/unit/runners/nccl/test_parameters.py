"""Which settings go together, by collective, version and library, and how they are said."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.runners.nccl.parameters import (
    ALGORITHMS,
    PARAMETERS,
    SYMMETRIC,
    SYMMETRIC_SINCE,
    Version,
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


def test_names_are_settings():
    assert settings_named("nccl") is None
    assert settings_named("nccl:ring:LL") == LibrarySettings("ring", "LL")
    assert settings_named("nccl:symmetric") == LibrarySettings("symmetric")
    for name in library_names("allgather")[1:]:
        assert settings_fault(CollectiveName.ALLGATHER, settings_named(name)) is None
    for wrong in ("nccl:star", "nccl:ring:ll", "ring", "nccl:ring:LL:8"):
        with pytest.raises(InvalidInput, match="NCCL has no algorithm '"):
            settings_named(wrong)


def test_settings_become_rows_and_variables():
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


def test_algorithms_have_the_numbers_of_nccl():
    assert list(ALGORITHMS) == ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]


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
    assert "\n".join(parameter_lines()) in REFERENCE.read_text()


def parameter_lines() -> Iterator[str]:
    """Yield the tables as Markdown, for the documentation."""
    yield "| algorithm | since | collectives | protocols | RCCL | source |"
    yield "|---|---|---|---|---|---|"
    for each in ALGORITHMS.values():
        collectives = ", ".join(sorted(name.value for name in each.collectives))
        rest = f"{collectives} | {', '.join(each.protocols)} | {'yes' if each.of_rccl else 'no'} | {each.source}"
        yield f"| `{each.name}` | {_text(each.since)} | {rest} |"
    yield (
        f"| `{SYMMETRIC}` | {_text(SYMMETRIC_SINCE)} | allgather, allreduce, reduce_scatter | none | no "
        "| nccl.h, ncclCommWindowRegister; the log names its kernels |"
    )
    yield ""
    yield "| setting | since | set by | variable | per call (2.31) | values | source |"
    yield "|---|---|---|---|---|---|---|"
    for one in PARAMETERS.values():
        variable = f"`{one.variable}`" if one.variable else "none"
        call = f"`{one.call}`" if one.call else "none"
        yield f"| `{one.name}` | {_text(one.since)} | {one.by} | {variable} | {call} | {one.values} | {one.source} |"


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
