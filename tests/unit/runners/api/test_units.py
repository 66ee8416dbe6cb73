"""Sizes as people write them, durations as they read them, and factors of bus bandwidth."""

import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.base import bus_factor
from chorale.runners.api.units import (
    MAX_SIZE_BYTES,
    divisible_size,
    format_ms,
    format_size,
    format_us,
    parse_size,
    parse_sizes,
)
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("12B", 12), ("64KiB", 2**16), ("64K", 2**16), ("64kib", 2**16), (" 1M ", 2**20), ("1GiB", 2**30)],
)
def test_a_size_is_binary(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes", "binary"),
    [("64kB", 64_000, "64KiB would be 65536"), ("1MB", 10**6, "1MiB"), ("2gb", 2 * 10**9, "2GiB")],
)
def test_a_decimal_size_is_told_from_a_binary_one(
    text: str, size_bytes: int, binary: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="chorale"):
        assert parse_size(text) == size_bytes
    assert binary in caplog.text


@given(st.integers(1, MAX_SIZE_BYTES))
def test_format_is_read_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "1T", "K", "1e6", "1 000", "9" * 30, "2048G", "٣K", "1K\n2K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read the size|a size must be between 1 byte and 1 TiB"):
        parse_size(text)


def test_lists_and_ranges_keep_their_order_without_repetition() -> None:
    assert parse_sizes("1M,64K,1M,4K:64K:x4") == (2**20, 2**16, 2**12, 2**14)
    assert parse_sizes("4KiB:1GiB:x4") == tuple(2**12 * 4**power for power in range(10))
    assert parse_sizes("3:20:x2") == (3, 6, 12)
    assert parse_sizes("1M,4K-64K") == parse_sizes("1M,4K:64K") == parse_sizes("1M,4K:64K:x4")


@pytest.mark.parametrize(
    "text", ["64K-", "-64K", "1K:2K:4", "1K:2K:x1", "2K:1K:x2", "1K:2K:x2:x3", "1K,", "a:b:x2", "1:1T:x0"]
)
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_sizes(text)


@given(st.integers(1, 10**9), st.sampled_from([4, 8]), st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_the_divisible_size_is_the_smallest_one(size_bytes: int, element_bytes: int, counts: list[int]) -> None:
    found = divisible_size(size_bytes, element_bytes, counts)
    assert found >= size_bytes
    assert all(found % (element_bytes * count) == 0 for count in counts)
    before = found - element_bytes
    while before >= size_bytes:
        assert any(before % (element_bytes * count) for count in counts)
        before -= element_bytes * max(1, found // element_bytes // 50)


@pytest.mark.parametrize(
    ("seconds", "milliseconds", "microseconds"),
    [
        (1.234e-5, "0.0123 ms", "12.34 us"),
        (0.0412, "41.2 ms", "41200 us"),
        (0.99949, "999 ms", "999490 us"),
        (0.9996, "1000 ms", "999600 us"),
        (7.17, "7170 ms", "7170000 us"),
        (0.0099991, "10 ms", "9999 us"),
    ],
)
def test_no_exponents(seconds, milliseconds, microseconds):
    assert (format_ms(seconds), format_us(seconds)) == (milliseconds, microseconds)


def test_every_collective_has_the_factor_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md of nccl-tests; for all-to-all AlltoAllGetBw in src/alltoall.cu."""
    others = {CollectiveName.ALLREDUCE: 2 * 7 / 8, CollectiveName.BROADCAST: 1, CollectiveName.REDUCE: 1}
    for collective in STANDARD:
        assert bus_factor(collective, 8) == pytest.approx(others.get(collective, 7 / 8))
