"""The real libnccl.so.2 as far as it goes without a GPU: versions, symbols, texts of its log, the interface of tuners.

CHORALE_TEST_NCCL names the file, by default that of the package nvidia-nccl, which PyTorch with CUDA has.
"""

import ctypes
import os
import re
from pathlib import Path

import pytest

from chorale.runners.engine.build import has_compiler
from chorale.runners.nccl.calls import Nccl, find_library
from chorale.runners.nccl.log import logged_calls
from chorale.runners.nccl.plugin import tuner_plugin

LIBRARY = os.environ.get("CHORALE_TEST_NCCL") or find_library("nccl")
pytestmark = pytest.mark.skipif(
    not Path(LIBRARY).is_file(), reason="NOT TESTED ON THIS MACHINE: there is no package nvidia-nccl"
)
CALLS = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "GroupStart", "GroupEnd",
    "CommInitRankConfig", "CommDestroy", "GetUniqueId", "MemAlloc", "MemFree", "CommWindowRegister",
    "CommWindowDeregister",
)  # fmt: skip


def test_it_is_loaded_and_has_all_that_ranks_call():
    nccl = Nccl(LIBRARY)
    assert nccl.version >= (2, 18)
    assert not nccl.is_rccl
    library = ctypes.CDLL(LIBRARY)
    assert [name for name in CALLS if not hasattr(library, f"nccl{name}")] == []
    text = Path(LIBRARY).read_bytes()
    assert f"NCCL version {nccl.version_text}".encode() in text


def test_its_log_has_the_form_that_is_read():
    formats = [
        line.decode()
        for line in Path(LIBRARY).read_bytes().split(b"\0")
        if b" Bytes -> " in line and (b"Algo %" in line or b"Kernel" in line)
    ]
    assert formats
    values = {"%s": iter(["AllReduce", "RING", "LL128"]), "%ld": iter(["4096"]), "%d": iter(["0", "3", "4"])}
    plain = next(text for text in formats if "Algo" in text)
    written = re.sub(r"%l?[sd]", lambda match: next(values[match[0]]), plain)
    [call] = logged_calls([f"host:1:1 [0] NCCL INFO {written}"])
    assert (call.collective, call.size_bytes, call.algorithm, call.protocol, call.channels) == (
        *("AllReduce", 4096, "ring", "ll128"), 4
    )  # fmt: skip


@pytest.mark.skipif(not has_compiler(), reason="NOT TESTED: there is no C++ compiler")
def test_the_plugin_has_the_newest_interface_that_it_looks_for():
    wanted = {int(number) for number in re.findall(rb"ncclTunerPlugin_v(\d+)\0", Path(LIBRARY).read_bytes())}
    plugin = ctypes.CDLL(str(tuner_plugin()))
    assert hasattr(plugin, f"ncclTunerPlugin_v{max(wanted)}")
    assert {number for number in wanted if hasattr(plugin, f"ncclTunerPlugin_v{number}")} == wanted
