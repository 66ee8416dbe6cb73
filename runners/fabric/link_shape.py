"""Sizes that a rate implies: of frames, of the pieces that pass at once, of queues and of the kernel's bucket."""

from __future__ import annotations

from fractions import Fraction

WIRE_MTU_BYTES = 9000
BUCKET_MTU_BYTES = 1500
HEADER_BYTES = 52
"""Of IP and TCP with time stamps, in every frame with data."""

_LARGEST_PIECE_BYTES = 65_536
_PIECE_S = Fraction(3, 1000)
_FORWARDED_PIECE_S = Fraction(1, 1000)
_WINDOW_S = Fraction(20, 1000)
_SMALLEST_WINDOW_BYTES = 2**17
_QUEUE_S = 2
_QUEUE_BYTES = (2**21, 2**24)  # first windows of many connections fit in; memory is finite


def wire_piece_bytes(bits_per_s: int, at_switch: bool = False) -> int:
    """Return how much the kernel may hand to a wire at once: some milliseconds' worth, less at a switch.

    A piece is delivered as a whole: large ones cost the least of processors, but whoever passes them on waits for all.
    """
    piece_s = _FORWARDED_PIECE_S if at_switch else _PIECE_S
    return min(max(int(bits_per_s * piece_s / 8), WIRE_MTU_BYTES), _LARGEST_PIECE_BYTES)


def wire_queue_bytes(bits_per_s: int, latency_us: Fraction) -> int:
    """Return how much a wire holds before it drops: two seconds' worth within bounds, and what is on its way."""
    smallest, largest = _QUEUE_BYTES
    on_its_way = int(bits_per_s * latency_us / 8_000_000)
    return min(max(_QUEUE_S * bits_per_s // 8, smallest), largest) + on_its_way


def window_frames(bits_per_s: int, latency_us: Fraction, mtu_bytes: int) -> int:
    """Return how many frames a connection may have on its way over a path of that rate and latency there and back.

    As few as keep it busy while threads wait for a processor: a sender that hands over more at once keeps others from
    starting, and fills queues.
    """
    enough_bytes = bits_per_s * (_WINDOW_S + 2 * latency_us / 1_000_000) / 8
    return -(-max(int(enough_bytes), _SMALLEST_WINDOW_BYTES) // mtu_bytes)


def carried_bytes(payload_bytes: int, mtu_bytes: int) -> int:
    """Return how many bytes a link carries for `payload_bytes`: those and the headers of full frames."""
    frames = -(-payload_bytes // (mtu_bytes - HEADER_BYTES))
    return payload_bytes + frames * HEADER_BYTES


BUCKET_PIECE_BYTES = 6000
BUCKET_PEAK = Fraction(11, 10)
"""The fastest that a bucket lets packets through, as a multiple of the rate."""

BUCKET_FRAME_BYTES = BUCKET_MTU_BYTES + 14
_SMALLEST_BURST_BYTES = 6 * BUCKET_FRAME_BYTES
_BURST_S = Fraction(1, 1000)
_MOST_EARLY = Fraction(1, 20)
_BUCKET_QUEUE_S = Fraction(2)


def bucket_burst_bytes(bits_per_s: int) -> int:
    """Return how much a bucket lets through after a pause without pacing: what late timers cost at least."""
    return max(_SMALLEST_BURST_BYTES, int(bits_per_s * _BURST_S / 8))


def bucket_limit_bytes(bits_per_s: int) -> int:
    """Return how much a bucket's queue holds."""
    return max(int(bits_per_s * _BUCKET_QUEUE_S / 8), _QUEUE_BYTES[0])


def bucket_honest_bytes(bits_per_s: int) -> int:
    """Return the size from which a bucket of that rate is at most 5 % too fast, whatever the burst it had saved."""
    return int(bucket_burst_bytes(bits_per_s) / _MOST_EARLY)
