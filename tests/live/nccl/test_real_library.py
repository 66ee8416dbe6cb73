"""The real libnccl.so.2 as far as it goes without a GPU: versions, symbols, texts of its log, the interface of tuners.

CHORALE_TEST_NCCL names the file, by default that of the package nvidia-nccl, which PyTorch with CUDA has.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.runners.engine.build import has_compiler
from chorale.runners.nccl.calls import Nccl, find_library
from chorale.runners.nccl.log import logged_calls
from chorale.runners.nccl.parameters import ALGORITHMS, CALL_CONFIG_SINCE, call_config
from chorale.runners.nccl.plugin import tuner_plugin
from chorale.synth.programs.library_call import LibrarySettings
from tests.unit.runners.nccl.test_parameters import written_line

LIBRARY = os.environ.get("CHORALE_TEST_NCCL") or find_library("nccl")
pytestmark = pytest.mark.skipif(
    not Path(LIBRARY).is_file(),
    reason="NCCL IS NOT TESTED ON THIS MACHINE: pip install nvidia-nccl-cu12",
)
CALLS = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "GroupStart", "GroupEnd",
    "CommInitRankConfig", "CommDestroy", "GetUniqueId", "MemAlloc", "MemFree",
)  # fmt: skip
SINCE = {
    (2, 27): ("CommWindowRegister", "CommWindowDeregister"),
    (2, 31): tuple(f"{name}Config" for name in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")),
}


def texts_with(part: bytes) -> Iterator[str]:
    """Yield the texts in the library that contain `part`, once each."""
    with Path(LIBRARY).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found, at = set(), content.find(part)
        while at >= 0:
            found.add(bytes(content[content.rfind(b"\0", 0, at) + 1 : content.find(b"\0", at)]))
            at = content.find(part, at + 1)
    yield from (text.decode(errors="replace") for text in sorted(found))


def test_it_has_all_that_ranks_call_and_its_log_has_the_form_that_is_read():
    nccl = Nccl(LIBRARY)
    assert nccl.version >= (2, 18)
    assert not nccl.is_rccl
    library = ctypes.CDLL(LIBRARY)
    newer = [name for since, names in SINCE.items() if nccl.version >= since for name in names]
    assert [name for name in (*CALLS, *newer) if not hasattr(library, f"nccl{name}")] == []
    assert any(f"NCCL version {nccl.version_text}" in text for text in texts_with(b"NCCL version "))
    formats = [text for text in texts_with(b" Bytes -> ") if "Algo %" in text]
    assert bool(formats) is (Nccl(LIBRARY).version >= (2, 20))  # before, no setting can be proved
    for plain in formats:
        [call] = logged_calls([written_line(plain)])
        assert (call.size_bytes, call.algorithm, call.protocol) == (4096, "ring", "ll128")
        assert call.channels == (4 if "channel" in plain else None)


def test_a_configuration_of_calls_selects_algorithms_of_its_registry():
    if Nccl(LIBRARY).version < CALL_CONFIG_SINCE:
        pytest.skip(reason="THIS NCCL HAS NO CONFIGURATION OF CALLS: install nvidia-nccl of 2.31 or newer")
    for algorithm in ALGORITHMS.values():
        for protocol in algorithm.protocols:
            selection = str(call_config(LibrarySettings(algorithm.name, protocol))["algSelection"])
            for name in selection.replace("^", "").split("+"):
                assert any(text.endswith(name) for text in texts_with(name.encode())), name  # tails are shared


@pytest.mark.skipif(not has_compiler(), reason="THE TUNER PLUG-IN IS NOT TESTED: apt-get install g++")
def test_the_plugin_has_the_newest_interface_that_it_looks_for():
    numbers = (re.findall(r"ncclTunerPlugin_v(\d+)$", text) for text in texts_with(b"ncclTunerPlugin_v"))
    wanted = {int(number) for each in numbers for number in each} - {1}  # the plug-in says why not 1
    plugin = ctypes.CDLL(str(tuner_plugin()))
    assert {number for number in wanted if hasattr(plugin, f"ncclTunerPlugin_v{number}")} == wanted
    assert wanted or Nccl(LIBRARY).version < (2, 20)
