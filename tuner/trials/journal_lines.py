"""The lines of a journal: the launch, then records, each with a checksum that names what a disk or an editor changed.

The checksum is the last key of a line, `crc32`: of the bytes before it. Lines of earlier versions have none.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from chorale.tuner.trials.journal import Launch, launch_codec
from chorale.tuner.trials.records import FinalComparison, TrialRecord

_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}$')
_CHECKSUM_KEY = b'"crc32":'


@dataclass(frozen=True, slots=True)
class WriterChange:
    """From here on the process `writer` writes, which opened the launch again; what wrote before must have ended."""

    writer: str
    state: Literal["writer"] = "writer"


JournalRecord = TrialRecord | FinalComparison | WriterChange

line_codec: TypeAdapter[JournalRecord] = TypeAdapter(Annotated[JournalRecord, Field(discriminator="state")])
"""Reads and writes the lines of a journal after the first; reading checks every field."""


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line that is no record; `number` counts from 1."""

    number: int
    content: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What the lines of a journal say. `launch` is None where the first line is damaged."""

    launch: Launch | None
    records: tuple[TrialRecord, ...]
    final: FinalComparison | None
    damaged: tuple[DamagedLine, ...]

    @property
    def repeated(self) -> tuple[str, ...]:
        """The ids of trials that were recorded more than once."""
        times = Counter(record.trial_id for record in self.records)
        return tuple(trial_id for trial_id, count in times.items() if count > 1)


def sealed(line: bytes) -> bytes:
    """Return a line, a JSON object with at least one key, with its checksum."""
    body = line[:-1]
    return body + b',"crc32":"%08x"}' % zlib.crc32(body)


def launch_line(launch: Launch) -> bytes:
    """Return the first line of a journal."""
    return sealed(launch_codec.dump_json(launch))


def record_line(record: JournalRecord) -> bytes:
    """Return a line after the first."""
    return sealed(line_codec.dump_json(record))


def parse_lines(lines: Sequence[bytes]) -> JournalContent:
    """Return everything that the lines say, and which of them are damaged."""
    launch: Launch | None = None
    damaged: list[DamagedLine] = []
    records: list[JournalRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            _check_seal(line)
            if number == 1:
                launch = launch_codec.validate_json(line)
            else:
                records.append(line_codec.validate_json(line))
        except ValidationError:  # before ValueError, of which it is a kind
            damaged.append(DamagedLine(number, line, "no record"))
        except ValueError as error:
            damaged.append(DamagedLine(number, line, str(error)))
    finals = [record for record in records if isinstance(record, FinalComparison)]
    trials = tuple(record for record in records if not isinstance(record, FinalComparison | WriterChange))
    return JournalContent(launch, trials, finals[-1] if finals else None, tuple(damaged))


def _check_seal(line: bytes) -> None:
    """Raise ValueError for a line that is not what its checksum says."""
    seal = _CHECKSUM.search(line)
    bad_sum = seal is not None and zlib.crc32(line[: seal.start()]) != int(seal[1], 16)
    if bad_sum or (seal is None and _CHECKSUM_KEY in line):
        raise ValueError("changed since it was written")


def record_key(line: bytes) -> str | None:
    """Return what a whole line must not share with another: the id of a trial; None for other lines."""
    trial_id = json.loads(line).get("trial_id")
    return trial_id if isinstance(trial_id, str) else None
