"""Properties of a fabric's links besides the common rate: latency, loss, and links that differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text

CONGESTION_CONTROL = "reno"
_SLOWEST_US = 10_000_000
_SYNTAX = "write SRC-DST:mbps=R,latency-us=L,loss=P with at least one of the three, such as 0-1:mbps=10,loss=0.01"
_OVERRIDE = re.compile(r"(\d+)-(\d+):(.+)")


@dataclass(frozen=True, slots=True)
class LinkOverride:
    """Properties of the link from node `src` to node `dst` that differ; None for those that do not."""

    src: int
    dst: int
    mbps: Fraction | None = None
    latency_us: Fraction | None = None
    loss: Fraction | None = None

    @property
    def arc(self) -> tuple[int, int]:
        return self.src, self.dst

    def latency_or(self, default: Fraction) -> Fraction:
        return default if self.latency_us is None else self.latency_us

    def loss_or(self, default: Fraction) -> Fraction:
        return default if self.loss is None else self.loss

    def to_text(self) -> str:
        """Return the text that `parse_override` reads."""
        values = {"mbps": self.mbps, "latency-us": self.latency_us, "loss": self.loss}
        parts = (f"{key}={rational_text(value)}" for key, value in values.items() if value is not None)
        return f"{self.src}-{self.dst}:{','.join(parts)}"


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of all links of a fabric.

    latency_us: delay of every packet on a link, in addition to the time of its bytes at the rate
    loss:       fraction of packets that get lost; `seed` determines which
    overrides:  links with other properties, one entry per link, sorted

    Raises InvalidInput for numbers out of range.
    """

    latency_us: Fraction = Fraction(0)
    loss: Fraction = Fraction(0)
    overrides: tuple[LinkOverride, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for latency_us in (self.latency_us, *(override.latency_us for override in self.overrides)):
            _require_range("latency", latency_us, _SLOWEST_US, "microseconds")
        for loss in (self.loss, *(override.loss for override in self.overrides)):
            _require_range("loss", loss, Fraction(1, 2), "as a part of all packets")
        arcs = [override.arc for override in self.overrides]
        if arcs != sorted(set(arcs)):
            raise InvalidInput(
                "a link is overridden twice: {}", self.overrides_text, "merge the overrides of this link"
            )

    @property
    def overrides_text(self) -> str:
        """The overrides as text, "" for none."""
        return " ".join(override.to_text() for override in self.overrides)


def parse_override(text: str) -> LinkOverride:
    """Parse the properties of one link, such as `0-1:mbps=10,latency-us=50,loss=0.01`."""
    match = _OVERRIDE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("cannot read the override of a link: {}", repr(text), _SYNTAX)
    values: dict[str, Fraction] = {}
    for part in match[3].split(","):
        key, _, value = part.partition("=")
        if key not in ("mbps", "latency-us", "loss") or key in values:
            raise InvalidInput("cannot read the override of a link: {}", repr(text), _SYNTAX)
        values[key] = parse_rational(value, f"the {key} of link {match[1]}-{match[2]}")
    return LinkOverride(int(match[1]), int(match[2]), values.get("mbps"), values.get("latency-us"), values.get("loss"))


def parse_overrides(texts: list[str]) -> tuple[LinkOverride, ...]:
    """Read several overrides, in any order."""
    return tuple(sorted(map(parse_override, texts), key=lambda override: override.arc))


def _require_range(name: str, value: Fraction | None, most: Fraction | int, unit: str) -> None:
    if value is not None and not 0 <= value <= most:
        raise InvalidInput(f"the {name} of a link must be 0 to {most} {unit}", rational_text(value), "choose another")


WIRE_MTU_BYTES = 9000
HEADER_BYTES = 52
"""Size of the IP and TCP headers, with time stamps, in every frame with data."""

_LARGEST_PIECE_BYTES = 65_536
_PIECE_S = Fraction(3, 1000)
_FORWARDED_PIECE_S = Fraction(1, 1000)
_WINDOW_S = Fraction(20, 1000)
_SMALLEST_WINDOW_BYTES = 2**17
_QUEUE_S = 2
_QUEUE_BYTES = (2**21, 2**24)  # room for the first windows of many connections, but bounded


def wire_piece_bytes(bits_per_s: int, at_switch: bool = False) -> int:
    """Return how many bytes the kernel may hand to a wire at a time: a few milliseconds of its rate, less at a switch.

    A piece is delivered as a whole. Large pieces need the least processor time, but each hop waits for the whole piece.
    """
    piece_s = _FORWARDED_PIECE_S if at_switch else _PIECE_S
    return min(max(int(bits_per_s * piece_s / 8), WIRE_MTU_BYTES), _LARGEST_PIECE_BYTES)


def wire_queue_bytes(bits_per_s: int, latency_us: Fraction) -> int:
    """Return how many bytes a wire queues before it drops packets: two seconds of its rate plus bytes in flight."""
    smallest, largest = _QUEUE_BYTES
    on_its_way = int(bits_per_s * latency_us / 8_000_000)
    return min(max(_QUEUE_S * bits_per_s // 8, smallest), largest) + on_its_way


def window_frames(bits_per_s: int, latency_us: Fraction, mtu_bytes: int) -> int:
    """Return how many frames a connection may have in flight over a path with that rate and round-trip latency.

    The number is just large enough to keep the path busy while threads wait for a processor. With more, one sender
    delays the start of others and fills queues.
    """
    enough_bytes = bits_per_s * (_WINDOW_S + 2 * latency_us / 1_000_000) / 8
    return -(-max(int(enough_bytes), _SMALLEST_WINDOW_BYTES) // mtu_bytes)


def carried_bytes(payload_bytes: int, mtu_bytes: int) -> int:
    """Return how many bytes a link carries for `payload_bytes`: the payload and the headers of its frames."""
    frames = -(-payload_bytes // (mtu_bytes - HEADER_BYTES))
    return payload_bytes + frames * HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Result of the test exchanges between a fabric's ranks when it came up.

    efficiency:     with all links busy, the time needed at the nominal rate (headers included) over the measured time
    exchange_bytes: payload of the largest stream in that exchange
    link_cores:     processors that the process of the links used during it
    cores:          processors that the exchanging process used
    """

    efficiency: float
    exchange_bytes: int
    link_cores: float
    cores: float


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """How a fabric's packets are carried.

    wire_pid:  process that carries them
    self_test: None if the fabric was not tested
    """

    latency_us: str = "0"
    loss: str = "0"
    overrides: str = ""
    seed: int = 0
    threads: int = 0
    wire_pid: int = 0
    self_test: SelfTest | None = None

    def facts(self) -> dict[str, str | int | float | None]:
        """Return what measurements depend on; part of the id of their environment."""
        return {
            "links": "wire",
            "link_latency_us": self.latency_us,
            "link_loss": self.loss,
            "link_overrides": self.overrides,
            "link_seed": self.seed,
            "link_threads": self.threads,
            "mtu_bytes": WIRE_MTU_BYTES,
            "congestion_control": CONGESTION_CONTROL,
        }
