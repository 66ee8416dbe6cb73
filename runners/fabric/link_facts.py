"""What the links of a fabric are: facts that measurements depend on, and what its self-test showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chorale.runners.fabric.link_options import LinkKind
from chorale.runners.fabric.link_shape import BUCKET_MTU_BYTES, WIRE_MTU_BYTES
from chorale.runners.fabric.setup_script import CONGESTION_CONTROL


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What exchanges of a fabric's ranks showed when it came up.

    highest_speed:  the largest ratio of rate reached to the link's rate over links that were idle before
    efficiency:     of all links busy: the time that they need, headers counted, by the time that it took
    exchange_bytes: payload of the largest stream in that exchange
    link_cores:     processors that the process of the links used meanwhile; 0 for links in the kernel
    cores:          those that the exchanging process used
    """

    highest_speed: float
    efficiency: float
    exchange_bytes: int
    link_cores: float
    cores: float


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """How packets of a fabric are carried.

    why_bucket:   why the links are not honest; "" if they are
    honest_bytes: the smallest message that is not carried too fast; 0 if that holds for all
    wire_pid:     the process that carries them; 0 for the kernel
    self_test:    None if none was made
    """

    kind: LinkKind = LinkKind.BUCKET
    why_bucket: str = ""
    latency_us: str = "0"
    loss: str = "0"
    overrides: str = ""
    seed: int = 0
    threads: int = 0
    honest_bytes: int = 0
    wire_pid: int = 0
    self_test: SelfTest | None = None

    @property
    def mtu_bytes(self) -> int:
        """The largest frame."""
        return WIRE_MTU_BYTES if self.kind == LinkKind.WIRE else BUCKET_MTU_BYTES

    def facts(self) -> dict[str, str | int | float | None]:
        """Return what measurements depend on; part of the id of their environment."""
        return {
            "links": self.kind.value,
            "link_latency_us": self.latency_us,
            "link_loss": self.loss,
            "link_overrides": self.overrides,
            "link_seed": self.seed,
            "link_threads": self.threads,
            "mtu_bytes": self.mtu_bytes,
            "congestion_control": CONGESTION_CONTROL,
        }

    def to_document(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> FabricLinks:
        """Return what `to_document` gave."""
        values = dict(document)
        kind, test = LinkKind(values.pop("kind")), values.pop("self_test")
        return FabricLinks(kind=kind, self_test=None if test is None else SelfTest(**test), **values)
