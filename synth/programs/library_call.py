"""Represents a collective that a library (NCCL) executes with its own algorithm, but that is stored like a program.

    {"format": "chorale-library/1", "collective": "allreduce", "root": null, "ranks": 8, "in_place": true,
     "settings": {"algorithm": "ring", "protocol": "LL", "ctas": 4}}

The library chooses the settings that are omitted. This module does not import NumPy, so that jobs can read settings
from tables without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from chorale.synth.collective import Collective, parse_collective
from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput, fault_in

if TYPE_CHECKING:  # jobs read tables without importing NumPy
    from chorale.synth.programs.program import Message


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """The algorithm that a library must use, and its settings. The library chooses settings that are None.

    algorithm:    the library's name for the algorithm, in lower case
    protocol:     the library's name for the protocol
    ctas:         number of channels, each run by one GPU thread block
    chunk_bytes:  bytes that a channel moves per step
    buffer_bytes: bytes of a channel's buffer
    threads:      number of threads per thread block
    cta_policy:   NCCL's policy for CTAs (thread blocks): default, efficiency or zero
    """

    algorithm: str
    protocol: str | None = None
    ctas: int | None = None
    chunk_bytes: int | None = None
    buffer_bytes: int | None = None
    threads: int | None = None
    cta_policy: str | None = None

    def to_json(self) -> dict[str, str | int]:
        """Return the settings that are not None, as a mapping from name to value."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> LibrarySettings:
        """Return the settings that `to_json` wrote. Raises InvalidInput for anything else."""
        kinds = {field.name: str if field.type.startswith("str") else int for field in fields(LibrarySettings)}
        wrong = [name for name, one in value.items() if type(one) is not kinds.get(name)]
        if wrong or "algorithm" not in value or any(type(one) is int and one < 1 for one in value.values()):
            rule = f"settings of a library must be an algorithm and some of {', '.join(kinds)}"
            raise InvalidInput(rule, dict(value), "write names as text and numbers as whole ones above zero")
        return LibrarySettings(**value)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_json().items())


FORMAT = "chorale-library/1"
MAX_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class LibraryRank:
    """A rank in a library collective. Its instructions are not known."""

    scratch_chunks: int = 0
    blocks: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A collective that a library executes. It has the attributes of a program, but no instructions or messages."""

    collective: Collective
    rank_count: int
    in_place: bool
    settings: LibrarySettings
    min_bytes: int = 0
    max_bytes: int = 0
    origin: str = ""

    @property
    def name(self) -> str:
        return f"{self.collective.name.value} nccl:{self.settings.algorithm}"

    @property
    def target(self) -> str:
        return "library"

    @property
    def chunks(self) -> int:
        return self.rank_count

    @property
    def protocol(self) -> str:
        return self.settings.protocol or "Simple"

    @property
    def channels(self) -> int:
        return self.settings.ctas or 0

    @property
    def ranks(self) -> tuple[LibraryRank, ...]:
        return (LibraryRank(),) * self.rank_count

    @property
    def one_sided(self) -> bool:
        return False

    def peers(self) -> set[tuple[int, int]]:
        """Return an empty set, because the library chooses its paths."""
        return set()

    def messages(self) -> Iterator[Message]:
        """Yield nothing, because the messages are unknown."""
        return iter(())


def library_call_text(call: LibraryCall) -> str:
    """Return `call` as JSON text that `parse_library_call` reads."""
    document = {
        "format": FORMAT,
        "collective": call.collective.name.value,
        "root": call.collective.root,
        "ranks": call.rank_count,
        "in_place": call.in_place,
        "settings": call.settings.to_json(),
    }
    return json.dumps(document) + "\n"


def is_library_text(text: bytes) -> bool:
    return f'"{FORMAT}"'.encode() in text[:80]


def parse_library_call(text: bytes) -> LibraryCall:
    """Return the library call in `text`. Raises InvalidInput for any other text."""
    require_small_json(text, "a library's call")
    try:
        value = json.loads(text)
        collective, ranks, in_place = parse_collective(value["collective"]), value["ranks"], value["in_place"]
        root = value["root"]
        if type(ranks) is not int or not 1 <= ranks <= MAX_RANKS or type(in_place) is not bool:
            raise ValueError(f"ranks {ranks!r}, in_place {in_place!r}")
        if root is not None and (type(root) is not int or not 0 <= root < ranks):
            raise ValueError(f"root {root!r}")
        return LibraryCall(
            Collective(collective.name, root), ranks, in_place, LibrarySettings.from_json(value["settings"])
        )
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        rule = f"a library's call must be what {FORMAT} describes"
        raise InvalidInput(rule, fault_in(error), "write it again") from error
