"""Sizes of pieces, queues and windows on fabric links, which follow from their rate."""

from fractions import Fraction

CONGESTION_CONTROL = "reno"
WIRE_MTU_BYTES = 9000
HEADER_BYTES = 52
"""Size of the IP and TCP headers, including time stamps, in every data frame."""

_LARGEST_PIECE_BYTES = 65_536
_PIECE_S = Fraction(3, 1000)
_FORWARDED_PIECE_S = Fraction(1, 1000)
_WINDOW_S = Fraction(20, 1000)
_SMALLEST_WINDOW_BYTES = 2**17
_QUEUE_S = 2
_QUEUE_BYTES = (2**21, 2**24)  # room for the first windows of many connections, but bounded


def wire_piece_bytes(bits_per_s: int, at_switch: bool = False) -> int:
    """Return the largest piece in bytes that the kernel may pass to an emulated link: a few milliseconds of traffic, or
    less at a switch.

    Large pieces need the least CPU time, but each hop waits until it has received a complete piece.
    """
    piece_s = _FORWARDED_PIECE_S if at_switch else _PIECE_S
    return min(max(int(bits_per_s * piece_s / 8), WIRE_MTU_BYTES), _LARGEST_PIECE_BYTES)


def wire_queue_bytes(bits_per_s: int) -> int:
    """Return the bytes that an emulated link can queue: two seconds of traffic, within bounds."""
    smallest, largest = _QUEUE_BYTES
    return min(max(_QUEUE_S * bits_per_s // 8, smallest), largest)


def window_frames(bits_per_s: int) -> int:
    """Return how many frames a connection may have in flight over a path with that rate.

    The number is just large enough to keep the path busy while threads wait for a CPU core. With more, one sender
    delays the start of others and fills queues.
    """
    return -(-max(int(bits_per_s * _WINDOW_S / 8), _SMALLEST_WINDOW_BYTES) // WIRE_MTU_BYTES)


def carried_bytes(payload_bytes: int, mtu_bytes: int) -> int:
    """Return how many bytes a link carries for `payload_bytes`: the payload and the headers of its frames."""
    frames = -(-payload_bytes // (mtu_bytes - HEADER_BYTES))
    return payload_bytes + frames * HEADER_BYTES
