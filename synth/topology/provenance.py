"""The origin of the link rates in a machine's network: stated in the file, published, or guessed."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from chorale.synth.topology.links import Links

Source = Literal["file", "published", "guess"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A fact on which the network of a machine relies, such as the rate of its NVLinks.

    source: "file" if the file or an option states it, "published" for data sheets and the source code of libraries
    reference: the attribute, option, data sheet or source file; for guesses, what to do if the guess is wrong
    """

    what: str
    value: str
    source: Source
    reference: str

    def to_json(self) -> dict[str, str]:
        """Return this assumption as an entry of `assumptions` in a JSON topology."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """The assumptions behind a network that was read from a machine's file.

    guessed:  pairs of node ids whose links have a guessed rate
    expected: the links at the rates that the machine's library expects, below the physical rates; None if unknown
    network:  id of the topology to which `expected` belongs; networks derived from it have no expected rates
    """

    assumptions: tuple[Assumption, ...]
    guessed: frozenset[tuple[str, str]] = frozenset()
    expected: Links | None = None
    network: str = ""


def merged(provenances: Iterable[Provenance], expected: Links | None, network: str) -> Provenance:
    """Return the provenance of a network built from other networks: all their assumptions and guessed links."""
    parts = list(provenances)
    return Provenance(
        tuple(dict.fromkeys(fact for part in parts for fact in part.assumptions)),
        frozenset().union(*(part.guessed for part in parts)),
        expected,
        network,
    )
