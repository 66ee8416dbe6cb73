"""Origin of the rates of a network that was read from a machine: stated in the file, published, or guessed."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from chorale.synth.topology.links import Links

Source = Literal["file", "published", "guess"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A fact about a machine that a network relies on.

    source: "file" for what the file or an option says, "published" for data sheets and source code of libraries
    reference: the attribute, option, data sheet or source file, or what to do if a guess is wrong
    """

    what: str
    value: str
    source: Source
    reference: str

    def to_json(self) -> dict[str, str]:
        """Return the JSON object of one entry of `assumptions`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """What a network read from a machine relies on.

    guessed:  ends, by node id, of the links whose rate is a guess
    expected: the links at the rates that the machine's library expects, below the physical rates; None if unknown
    network:  id of the topology that `expected` belongs to; networks derived from it have no expected rates
    """

    assumptions: tuple[Assumption, ...]
    guessed: frozenset[tuple[str, str]] = frozenset()
    expected: Links | None = None
    network: str = ""


def merged(provenances: Iterable[Provenance], expected: Links | None, network: str) -> Provenance:
    """Return the provenance of a network made from several."""
    parts = list(provenances)
    return Provenance(
        tuple(dict.fromkeys(fact for part in parts for fact in part.assumptions)),
        frozenset().union(*(part.guessed for part in parts)),
        expected,
        network,
    )
