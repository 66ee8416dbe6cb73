"""CRC-32C against published values, by instruction and by table."""

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE, engine_library
from tests import native

Checksum = Callable[[int, bytes, int], int]


def _function(path: Path, name: str) -> Checksum:
    function = getattr(ctypes.CDLL(str(path)), name)
    function.argtypes, function.restype = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint32
    return function  # type: ignore[no-any-return]


def _by_table() -> Checksum:
    source = Path(native.__path__[0]) / "checksum_by_table.cpp"
    target = NativeTarget("libchecksum_by_table.so", (source,), ("-shared", "-fPIC"), (NATIVE,))
    return _function(build_native(target), "checksum_by_table")


def _of_engine() -> Checksum:
    return _function(engine_library(), "_ZN7chorale6crc32cEjPKvm")


@pytest.mark.parametrize("make", [_by_table, _of_engine])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # these four from RFC 3720
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(make: Callable[[], Checksum], data: bytes, expected: int) -> None:
    assert make()(0, data, len(data)) == expected


def test_both_agree_however_the_bytes_are_cut() -> None:
    draw, table, engine = random.Random(3), _by_table(), _of_engine()
    for _ in range(200):
        data = draw.randbytes(draw.randrange(300))
        cut = draw.randrange(len(data) + 1)
        whole = table(0, data, len(data))
        assert engine(0, data, len(data)) == whole
        assert engine(engine(0, data[:cut], cut), data[cut:], len(data) - cut) == whole
