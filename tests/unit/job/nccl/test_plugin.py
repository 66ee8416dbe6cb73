"""The tuner plug-in applies the tables that are exported, by every interface of NCCL, and leaves all else to NCCL."""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from chorale.job.nccl.plugin import applied_rows, main, tuner_plugin
from chorale.runners.engine.build import has_compiler
from chorale.tuner.reports.library_files import nccl_table_csv
from tests.command import python
from tests.unit.tuner.reports.test_library_files import own, ring_table, table_of

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
USUAL_COST, IGNORED = 7.5, -1.0
WARN = 2
VERSIONS = (2, 3, 4, 5, 6, 7)
NO_COSTS, WITH_CHUNKS = 2, 6
_NEW_INIT = 5
_NEW_CHOICE = 4

Pointer = ctypes.c_void_p
_Logger = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


class Interface(ctypes.Structure):
    """What a plug-in exports, whatever the version."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("init", Pointer), ("choose", Pointer), ("finish", Pointer), ("chunk", Pointer),
    ]  # fmt: skip


@dataclass
class Plugin:
    """An interface of the plug-in with one communicator. warnings: the formats of those that it wrote."""

    path: Path
    version: int
    ranks: int = 4
    nodes: int = 1
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        library = ctypes.CDLL(str(self.path))
        self._interface = Interface.in_dll(library, f"ncclTunerPlugin_v{self.version}")
        self._context = Pointer()
        self._logger = _Logger(self._log)
        to, size = ctypes.byref(self._context), ctypes.c_size_t
        arguments: tuple[Any, ...] = size(self.ranks), size(self.nodes), self._logger
        arguments = (to, ctypes.c_uint64(1), *arguments, None, None) if self.version >= _NEW_INIT else (*arguments, to)
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.init)(*arguments) == 0

    def choice(
        self,
        collective: str,
        size_bytes: int,
        ignored: Mapping[str, str] | None = None,
        algorithms: int = len(ALGORITHMS),
    ) -> tuple[str, str, int] | None:
        """Return algorithm, protocol and channels, 0 for NCCL's own; None where all is left to NCCL.

        ignored: combinations that NCCL has not; algorithms: how many it knows
        """
        if self.version == NO_COSTS:
            return self._choice_without_costs(collective, size_bytes)
        costs = (ctypes.c_float * (algorithms * len(PROTOCOLS)))(*[USUAL_COST] * (algorithms * len(PROTOCOLS)))
        for algorithm, protocol in (ignored or {}).items():
            costs[ALGORITHMS.index(algorithm) * len(PROTOCOLS) + PROTOCOLS.index(protocol)] = IGNORED
        channels = ctypes.c_int(0)
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes), 1, costs, algorithms, len(PROTOCOLS)
        registered = (0,) if self.version >= _NEW_CHOICE else ()
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.choose)(
            self._context, *call, *registered, ctypes.byref(channels)
        )
        assert answer == 0
        best = [at for at, cost in enumerate(costs) if cost == 0]
        if not best:
            assert channels.value == 0
            return None
        [at] = best
        return ALGORITHMS[at // len(PROTOCOLS)], PROTOCOLS[at % len(PROTOCOLS)], channels.value

    def _choice_without_costs(self, collective: str, size_bytes: int) -> tuple[str, str, int] | None:
        """Ask the interface that takes a choice as it is; there are switches, and no network that adds."""
        algorithm, protocol, channels = (ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_int(0))
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes), 0, 1, 1
        answers = ctypes.byref(algorithm), ctypes.byref(protocol), ctypes.byref(channels)
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.choose)(self._context, *call, *answers) == 0
        if algorithm.value < 0:
            assert protocol.value == -1
            return None
        return ALGORITHMS[algorithm.value], PROTOCOLS[protocol.value], channels.value

    def chunk(self, collective: str, size_bytes: int, algorithm: str, protocol: str, own: int) -> int:
        """Return the bytes of a chunk, where NCCL's own are `own`; from version 6 on."""
        chunk = ctypes.c_size_t(own)
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes)
        names = ALGORITHMS.index(algorithm), PROTOCOLS.index(protocol), 4
        function = ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.chunk)
        assert function(self._context, *call, *names, ctypes.byref(chunk)) == 0
        return chunk.value

    def close(self) -> None:
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.finish)(self._context) == 0

    def _log(self, level: int, flags: int, file: bytes, line: int, text: bytes) -> None:
        if level == WARN:
            self.warnings.append(text.decode())


pytestmark = pytest.mark.skipif(not has_compiler(), reason="THE TUNER PLUG-IN IS NOT TESTED: apt-get install g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuner_plugin()


@pytest.fixture
def plugin(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def made(text: str | None, version: int = 6, ranks: int = 4, nodes: int = 1) -> Plugin:
        if text is not None:
            (tmp_path / "tuner.csv").write_text(text)
        monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(tmp_path / "tuner.csv"))
        return Plugin(library, version, ranks, nodes)

    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_applied_by_every_interface(plugin, version):
    table = ring_table(1024, 2**20)
    made = plugin(nccl_table_csv(table), version)
    assert made.choice("allreduce", 1024) == ("ring", "ll", 2)
    assert made.choice("allreduce", 2**20) == ("ring", "ll", 2)
    assert made.choice("allreduce", 1023) is None
    assert made.choice("allreduce", 2**20 + 1) is None
    assert made.choice("allgather", 4096) is None
    assert made.warnings == []
    made.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_numbers_of_algorithms_are_nccls_and_channels_its_own(plugin, algorithm):
    collective = "allgather" if algorithm == "pat" else "allreduce"
    made = plugin(nccl_table_csv(table_of(own(f"library:nccl:{algorithm}", 0, None, collective), ranks=4)))
    assert made.choice(collective, 2**40) == (algorithm, "simple", 0)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= WITH_CHUNKS])
def test_chunks_are_those_of_the_row_that_was_chosen(plugin, version):
    made = plugin("allreduce,0,9,ring,ll,1,-1,4,-1,-1,4096\nallreduce,0,99,tree,ll,1,-1,4,-1,-1\n", version)
    assert made.chunk("allreduce", 9, "ring", "ll", 512) == 4096
    assert made.chunk("allreduce", 9, "ring", "simple", 512) == 512
    assert made.chunk("allreduce", 10, "tree", "ll", 512) == 512
    assert made.chunk("allgather", 9, "ring", "ll", 512) == 512


def test_a_report_counts_what_rows_decided_beside_nccls_own_costs(plugin, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHORALE_TUNER_REPORT", str(tmp_path / "report"))
    for _ in range(2):  # two processes, or communicators
        made = plugin("allreduce,0,9,nvls,simple,3,-1,4\nallreduce,0,99,ring,ll,1,-1,4\nreduce,0,9,ring,ll,1,-1,4\n")
        assert made.choice("allreduce", 9) == ("nvls", "simple", 3)
        assert made.choice("allreduce", 9, {"nvls": "simple"}) == ("ring", "ll", 1)
        assert made.choice("allreduce", 100) is None
        made.close()
    first, second, third = applied_rows(tmp_path / "report")
    assert (first["calls"], first["bytes"], first["refused"], first["cost_us"]) == (2, 18, 2, 2 * USUAL_COST)
    assert first["own"] == {"algorithm": "tree", "protocol": "ll", "cost_us": 2 * USUAL_COST}
    assert (second["calls"], second["refused"], third["calls"], third["own"]) == (2, 0, 0, None)
    assert main([str(tmp_path / "report")]) == 0
    assert "allreduce 0 to 9 B: nvls/simple: 2 calls, 2 refused" in capsys.readouterr().out
    (tmp_path / "report").write_text("{}")
    assert main([str(tmp_path / "report")]) == 2


def test_what_nccl_cannot_run_and_what_is_for_other_numbers_of_ranks_is_left_to_the_next_row(plugin):
    made = plugin("allreduce,0,9,tree,ll,3,-1,-1\nallreduce,0,9,pat,simple,4,-1,-1\nallreduce,0,9,ring,ll,5,-1,-1\n")
    assert made.choice("allreduce", 9) == ("tree", "ll", 3)
    assert made.choice("allreduce", 9, {"tree": "ll"}) == ("pat", "simple", 4)
    assert made.choice("allreduce", 9, {"tree": "ll"}, algorithms=6) == ("ring", "ll", 5)
    assert made.choice("allreduce", 9, {"tree": "ll", "pat": "simple", "ring": "ll"}) is None
    rows = "allreduce,0,9,tree,ll,1,2,8,-1,-1\nallreduce,0,9,ring,ll,2,-1,4,1,-1\n"
    rows += "allreduce,0,9,ring,simple,3,-1,-1,1,1\n"
    assert plugin(rows, ranks=8, nodes=2).choice("allreduce", 1) == ("tree", "ll", 1)
    assert plugin(rows, ranks=4, nodes=2).choice("allreduce", 1) == ("ring", "ll", 2)
    assert plugin(rows, ranks=8, nodes=1).choice("allreduce", 1) is None


def test_wrong_lines_are_said_and_left_out(plugin):
    made = plugin(
        "# a comment\n\n"
        "allreduce,0,9,Tree,ll,1,-1,4\n"
        "alltoall,0,9,ring,ll,1,-1,4\n"
        "allreduce,0,9,ring,LL,1,-1,4\n"
        "allreduce,-1,9,ring,ll,1,-1,4\n"
        "allreduce,0,9.5,ring,ll,1,-1,4\n"
        "allreduce,0,99999999999999999999,ring,ll,1,-1,4\n"
        "allreduce,0,9,ring,ll,-2,-1,4\n"
        "allreduce,0,9,ring,ll\n"
        "allreduce,0,9,ring,ll,1,-1,4,-1,-1,7,8\n"
        "allreduce;0;9;ring;ll;1;-1;4\n"
        " allreduce , 0 , 9 , nvls , simple , 6 , -1 , 4 \r\n"
    )
    assert made.choice("allreduce", 4) == ("nvls", "simple", 6)
    assert len(made.warnings) == 10
    assert set(made.warnings) == {"Chorale: %s:%d is left out: %s"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_table_that_is_not_there_or_a_pipe_is_said_and_nothing_is_chosen(plugin, tmp_path, is_pipe):
    if is_pipe:
        os.mkfifo(tmp_path / "tuner.csv")
    made = plugin(None)
    assert made.choice("allreduce", 4) is None
    assert "no table to be read" in made.warnings[0]


row = st.builds(
    lambda collective, first, length, algorithm, protocol, channels, ranks: (
        f"{collective},{first},{first + length},{algorithm},{protocol},{channels},-1,{ranks}"
    ),
    st.sampled_from(COLLECTIVES),
    st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(PROTOCOLS),
    st.integers(-1, 3),
    st.sampled_from([-1, 4, 5]),
)
junk = st.text(st.sampled_from("allreduce,ringl123-. \t#\0\x7f\u20ac"), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(row | junk, max_size=8), st.sampled_from(COLLECTIVES), st.integers(0, 110))
def test_the_first_row_that_matches_decides_among_whatever_else(plugin, lines, collective, size_bytes):
    made = plugin("\n".join(lines) + "\n")
    rows = [line.split(",") for line in lines if line.split(",")[0] in COLLECTIVES and len(line.split(",")) == 8]
    matching = [
        (fields[3], fields[4], max(int(fields[5]), 0))
        for fields in rows
        if fields[0] == collective and int(fields[1]) <= size_bytes <= int(fields[2]) and fields[7] in ("-1", "4")
    ]
    assert made.choice(collective, size_bytes) == (matching[0] if matching else None)
    made.close()


def test_the_path_is_printed(tmp_path: Path):
    done = python("-m", "chorale.job.nccl.plugin", CHORALE_HOME=str(tmp_path))
    assert Path(done.stdout.strip()).name == "libnccl-tuner-chorale.so"
    assert Path(done.stdout.strip()).exists()
