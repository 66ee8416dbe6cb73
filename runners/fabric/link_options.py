"""What links of a fabric are like besides the rate that all share: kind, latency, loss, and links that differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text

_SLOWEST_US = 10_000_000
_SYNTAX = "write SRC-DST:mbps=R,latency-us=L,loss=P with at least one of the three, such as 0-1:mbps=10,loss=0.01"
_OVERRIDE = re.compile(r"(\d+)-(\d+):(.+)")


class LinkKind(StrEnum):
    """What carries packets: a process that is honest at all sizes, or the kernel's token bucket, which is not."""

    WIRE = "wire"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class LinkOverride:
    """What differs for the link from node `src` to node `dst`; None where nothing does."""

    src: int
    dst: int
    mbps: Fraction | None = None
    latency_us: Fraction | None = None
    loss: Fraction | None = None

    @property
    def arc(self) -> tuple[int, int]:
        return self.src, self.dst

    def latency_or(self, default: Fraction) -> Fraction:
        """Return its latency in microseconds, `default` if it has none of its own."""
        return default if self.latency_us is None else self.latency_us

    def loss_or(self, default: Fraction) -> Fraction:
        """Return the part of packets that it loses, `default` if it has none of its own."""
        return default if self.loss is None else self.loss

    def to_text(self) -> str:
        """Return the text that `parse_override` reads."""
        values = {"mbps": self.mbps, "latency-us": self.latency_us, "loss": self.loss}
        parts = (f"{key}={rational_text(value)}" for key, value in values.items() if value is not None)
        return f"{self.src}-{self.dst}:{','.join(parts)}"


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of all links of a fabric.

    kind:       None takes the honest one where it can be had
    latency_us: what every packet takes on a link besides its bytes at the rate
    loss:       the part of packets that never comes out, drawn from `seed`
    overrides:  links that differ, one entry for each, in rising order

    Raises InvalidInput for numbers out of range and for latency or loss over the kernel's bucket, which has neither.
    """

    kind: LinkKind | None = None
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
            raise InvalidInput("each link may be overridden once", self.overrides_text, "merge what is for one link")
        if self.kind == LinkKind.BUCKET and self.needs_wire:
            rule = "only links of kind wire have latency or loss"
            raise InvalidInput(
                rule, "links of kind bucket", "leave out --links, --latency-us and --loss, or one of them"
            )

    @property
    def needs_wire(self) -> bool:
        """Whether any link has latency or loss."""
        return bool(self.latency_us or self.loss) or any(item.latency_us or item.loss for item in self.overrides)

    @property
    def overrides_text(self) -> str:
        """The overrides as text, "" for none."""
        return " ".join(override.to_text() for override in self.overrides)


def parse_override(text: str) -> LinkOverride:
    """Read what differs for one link from text such as `0-1:mbps=10,latency-us=50,loss=0.01`."""
    match = _OVERRIDE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("an override of a link must name it and what differs", repr(text), _SYNTAX)
    values: dict[str, Fraction] = {}
    for part in match[3].split(","):
        key, _, value = part.partition("=")
        if key not in ("mbps", "latency-us", "loss") or key in values:
            raise InvalidInput("an override of a link must name it and what differs", repr(text), _SYNTAX)
        values[key] = parse_rational(value, f"the {key} of link {match[1]}-{match[2]}")
    return LinkOverride(int(match[1]), int(match[2]), values.get("mbps"), values.get("latency-us"), values.get("loss"))


def parse_overrides(texts: list[str]) -> tuple[LinkOverride, ...]:
    """Read several overrides, in any order."""
    return tuple(sorted(map(parse_override, texts), key=lambda override: override.arc))


def _require_range(name: str, value: Fraction | None, most: Fraction | int, unit: str) -> None:
    if value is not None and not 0 <= value <= most:
        raise InvalidInput(f"the {name} of a link must be 0 to {most} {unit}", rational_text(value), "choose another")
