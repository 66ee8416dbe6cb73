"""Numbers as bytes: LEB128 with zigzag signs, which is small for the small numbers that programs consist of."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


def pack(numbers: Iterable[int]) -> bytes:
    """Return `numbers`, each of 64 bits, as bytes.

    >>> list(pack([0, -1, 1, 64]))
    [0, 1, 2, 128, 1]
    """
    packed = bytearray()
    for number in numbers:
        left = number << 1 if number >= 0 else ((-number) << 1) - 1
        while left > 0x7F:
            packed.append(left & 0x7F | 0x80)
            left >>= 7
        packed.append(left)
    return bytes(packed)


def unpack(data: bytes) -> array[int]:
    """Return what `pack` packed; ValueError for bytes that end inside a number or say one beyond 64 bits."""
    numbers = array("q")
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >> 64:
                raise ValueError("a number has more than 64 bits")
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    if shift:
        raise ValueError("the bytes end inside a number")
    return numbers
