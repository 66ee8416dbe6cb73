"""Defines tuning tables: their programs, their entries (which say what runs for which calls), and the file format.

The format of the file:

    chorale-table/1
    HEADER_BYTES INDEX_BYTES BLOB_BYTES SHA256 [HMAC]
    header: one line of canonical JSON, for people and for Python
    index:  lines of words derived from the header, for readers without a JSON parser
    blobs:  compressed program texts, and each rank's part of each program, encoded for the engine ("words")

SHA256 covers everything after the second line and is the digest of the table; HMAC is the optional signature.
Index lines:

    ranks N
    program NUMBER DIGEST COLLECTIVE ROOT RANKS             (root -1: none)
    words NUMBER RANK OFFSET BYTES CRC32                    (offset into the blobs; packed, see `pack`)
    entry COLLECTIVE DTYPE GROUP ROOT MIN MAX NUMBER        (group: * or ranks with commas; MAX -1: no limit; NUMBER -1:
                                                             the library runs the call, because the entry has no
                                                             program or a plan, which only torch jobs can run)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from chorale.job.files import open_regular
from chorale.synth.errors import InvalidInput

FORMAT = "chorale-table/1"
"""First line of a table file."""

ANY_DTYPE = "any"
"""Value of `dtype` in an entry that applies to all element types."""

PLAN_TARGET = "mscclpp-json"
"""Target of the programs that are plans. In jobs, plans run only on GPUs, as kernels."""

Json = Mapping[str, Any]
_WAY_OUT = "write it again: chorale table write"
MAX_TABLE_BYTES = 2**28
MAX_HEADER_BYTES = 2**24
MAX_TEXT_BYTES = 2**27
"""Maximum total size of all program texts before compression, in bytes."""
MAX_ENTRIES, MAX_PROGRAMS, MAX_RANKS = 2**15, 2**13, 2**16


@dataclass(frozen=True, slots=True)
class JobEntry:
    """An entry of a tuning table: it says what runs for one collective in one size range.

    dtype:     name of an element type, or ANY_DTYPE
    group:     ranks of the job in the order of the program's ranks; None for all ranks of the job in order
    root:      position of the root in the group for broadcast and reduce; None for other collectives
    min_bytes, max_bytes: sizes of the whole vector, both inclusive; None for no limit
    program:   digest of the program, or None for the library's own algorithm
    measured:  the measurement with its confidence interval; None if nothing was measured
    certificate: proven quality of the schedule; None for the library's own algorithm
    provenance: campaign, MLflow run and version of Chorale that produced the entry
    settings:  settings for the library's own algorithm; None if a program runs or the library chooses them
    """

    collective: str
    dtype: str
    group: tuple[int, ...] | None
    root: int | None
    min_bytes: int
    max_bytes: int | None
    program: str | None
    measured: Json | None = None
    certificate: Json | None = None
    provenance: Json = field(default_factory=dict)
    settings: Json | None = None

    @property
    def key(self) -> tuple[str, str, tuple[int, ...] | None, int | None]:
        """Return the collective, type, group and root that a call must have for this entry to apply."""
        return self.collective, self.dtype, self.group, self.root

    def covers(self, size_bytes: int) -> bool:
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)


@dataclass(frozen=True, slots=True)
class TableProgram:
    """A program in a tuning table: its text, which `lift` parses, and each rank's part, encoded for the engine.

    digest:  SHA-256 of the text
    target:  format of the text
    method, parameters: how the program's schedule was made; for information only
    ranks:   number of ranks
    words:   each rank's part, encoded by `chorale.runners.engine.library`; empty for a plan (run as GPU kernels)
    order_of_additions: order proven by `chorale.synth.programs.additions`; None without additions or without a proof
    """

    digest: str
    target: str
    method: str
    parameters: Json
    collective: str
    root: int | None
    ranks: int
    text: bytes = field(repr=False)
    words: tuple[bytes, ...] = field(repr=False)
    order_of_additions: Json | None = None

    @property
    def is_plan(self) -> bool:
        return self.target == PLAN_TARGET


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """The content of a table file. Entries with the same key do not overlap. `programs` maps digests to programs."""

    topology: Json
    ranks: int
    entries: tuple[JobEntry, ...]
    programs: Mapping[str, TableProgram]
    provenance: Json = field(default_factory=dict)

    def __repr__(self) -> str:
        collectives = ", ".join(sorted({entry.collective for entry in self.entries})) or "nothing"
        counts = f"{len(self.entries)} entries, {len(self.programs)} programs"
        return f"<Table of {self.ranks} ranks on {self.topology.get('spec', 'any network')}: {collectives}; {counts}>"


class Fallback(StrEnum):
    """The reasons why the library's own algorithm runs instead of a program."""

    NO_TABLE = "no table"
    GROUP = "group not in the table"
    COLLECTIVE = "collective not in the table"
    ROOT = "root not in the table"
    DTYPE = "element type not in the table"
    SIZE = "size not in the table"
    LIBRARY = "the table says the library's own"
    OPERATION = "operation that no program supports"
    LAYOUT = "elements that are not contiguous"
    SHAPE = "vector that ranks do not divide into equal shards"
    DEVICE = "device that programs do not run on"
    PLAN = "plans need tensors on GPUs that reach each other's memory"
    HOSTS = "group on several hosts, whose GPUs one plan cannot reach: only programs run there, as rounds of sends"
    ROOM = "larger than the memory that plans have"


@dataclass(frozen=True, slots=True)
class GroupEntries:
    """The entries of a table for one group. `find` takes time proportional to the number of entries."""

    entries: tuple[JobEntry, ...]

    @staticmethod
    def of(table: Table, group: Sequence[int]) -> GroupEntries:
        """Return the entries for the group that consists of the ranks `group`, in this order."""
        everyone = tuple(group) == tuple(range(table.ranks))
        return GroupEntries(
            tuple(e for e in table.entries if (e.group is None and everyone) or e.group == tuple(group))
        )

    def find(self, collective: str, root: int | None, dtype: str, size_bytes: int) -> JobEntry | Fallback:
        """Return the entry for a call on a whole vector of `size_bytes`, or the reason why no program runs.
        An entry for exactly the element type `dtype` takes precedence over an entry for any type.
        """
        found, reason = self.entries, Fallback.GROUP
        tests = (
            (Fallback.COLLECTIVE, lambda entry: entry.collective == collective),
            (Fallback.ROOT, lambda entry: entry.root == root),
            (Fallback.DTYPE, lambda entry: entry.dtype in (dtype, ANY_DTYPE)),
            (Fallback.SIZE, lambda entry: entry.covers(size_bytes)),
        )
        for next_reason, holds in tests:
            if not found:
                return reason
            found, reason = tuple(filter(holds, found)), next_reason
        if not found:
            return reason
        entry = min(found, key=lambda entry: entry.dtype == ANY_DTYPE)
        return Fallback.LIBRARY if entry.program is None else entry


def table_bytes(table: Table, key: bytes | None = None) -> bytes:
    """Return the file content for `table`; equal tables give identical bytes.

    key: key to sign the table with; None for no signature

    Raises InvalidInput if the table exceeds the readers' limits.
    """
    _require_limits(table.ranks, len(table.entries), len(table.programs))
    text_bytes = sum(len(program.text) for program in table.programs.values())
    _require(text_bytes <= MAX_TEXT_BYTES, f"programs of at most {MAX_TEXT_BYTES} bytes together", text_bytes)
    blobs, programs, index = bytearray(), [], [f"ranks {table.ranks}"]
    for number, (digest, program) in enumerate(sorted(table.programs.items())):
        text = zlib.compress(program.text, 9)
        programs.append({name: getattr(program, name) for name in _PROGRAM_TYPES} | {"text": [len(blobs), len(text)]})
        blobs += text
        index.append(f"program {number} {digest} {program.collective} {_or_none(program.root)} {program.ranks}")
        for rank, words in enumerate(program.words):
            index.append(f"words {number} {rank} {len(blobs)} {len(words)} {zlib.crc32(words)}")
            blobs += words
    programs_in_order = enumerate(sorted(table.programs.items()))
    numbers = {digest: -1 if program.is_plan else number for number, (digest, program) in programs_in_order}
    for entry in table.entries:
        group = "*" if entry.group is None else ",".join(map(str, entry.group))
        sizes = f"{entry.min_bytes} {_or_none(entry.max_bytes)}"
        number = -1 if entry.program is None else numbers[entry.program]
        index.append(f"entry {entry.collective} {entry.dtype} {group} {_or_none(entry.root)} {sizes} {number}")
    header = {
        "topology": table.topology,
        "ranks": table.ranks,
        "provenance": table.provenance,
        "entries": [
            # Written only if set, because earlier versions cannot read `settings`
            {name: value for name, value in asdict(entry).items() if name != "settings" or value is not None}
            for entry in table.entries
        ],
        "programs": programs,
    }
    parts = _line(json.dumps(header, sort_keys=True, separators=(",", ":"))), _line(*index), bytes(blobs)
    _require(len(parts[0]) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes", len(parts[0]))
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    sizes = " ".join(str(len(part)) for part in parts)
    signed = "" if key is None else f" {signature(digest, key)}"
    return b"".join((_line(FORMAT, f"{sizes} {digest}{signed}"), *parts))


def signature(digest: str, key: bytes) -> str:
    return hmac.new(key, f"{FORMAT} {digest}".encode(), hashlib.sha256).hexdigest()


def require_signature(data: bytes, key: bytes) -> None:
    """Raise InvalidInput unless `data`, a table file's content, is signed with `key`."""
    digest, signed = (*data[:400].split(b"\n")[1].split()[3:], b"")[:2]
    if not hmac.compare_digest(signed, signature(digest.decode(errors="replace"), key).encode()):
        rule = "the tuning table is not signed with the key of CHORALE_TABLE_KEY: {}"
        value = "it has the signature of another key" if signed else "it has no signature"
        raise InvalidInput(rule, value, "sign it on a machine that has the key: chorale table write --sign")


def file_digest(path: Path) -> str | None:
    """Return the digest in the second line of a table file; None if there is no readable table file at `path`."""
    try:
        with open_regular(path) as file:
            first, second = file.readline(64), file.readline(400)
    except (OSError, InvalidInput):
        return None
    words = second.split()
    return words[3].decode(errors="replace") if first == f"{FORMAT}\n".encode() and len(words) in (4, 5) else None


def parse_table(data: bytes) -> tuple[Table, str]:
    """Parse a table file's content; return the table and its digest. Raises InvalidInput for other content."""
    _require(len(data) <= MAX_TABLE_BYTES, f"at most {MAX_TABLE_BYTES} bytes", len(data))
    digest, header, index, blobs = _sections(data)
    _require(len(header) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes", len(header))
    try:
        value = json.loads(header)
        _require_types(value, {"topology": (dict,), "ranks": (int,), "provenance": (dict,)})
        _require_limits(value["ranks"], len(value["entries"]), len(value["programs"]))
        left, numbered = MAX_TEXT_BYTES, []
        for entry in value["programs"]:
            numbered.append(_program(entry, blobs, left))
            left -= len(numbered[-1].text)
        entries = tuple(map(_entry, value["entries"]))
        words = _words(index, blobs, len(numbered))
        programs = {}
        for program, of_ranks in zip(numbered, words, strict=True):
            ranks = range(0 if program.is_plan else program.ranks)
            programs[program.digest] = replace(program, words=tuple(of_ranks[rank] for rank in ranks))
        return Table(value["topology"], value["ranks"], entries, programs, value["provenance"]), digest
    except InvalidInput:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, zlib.error) as error:
        raise InvalidInput("the tuning table is damaged: {}", error, _WAY_OUT) from error


def _sections(data: bytes) -> tuple[str, bytes, bytes, bytes]:
    first, _, rest = data.partition(b"\n")
    if first != FORMAT.encode():
        found = repr(first[:20].decode(errors="replace")) if first.isascii() and first.isalnum() else "other content"
        way_out = "name such a file; `chorale table write` makes one of a campaign, schedules or programs"
        raise InvalidInput(f"a tuning table must begin with the line {FORMAT}", found, way_out)
    second, _, rest = rest.partition(b"\n")
    try:
        words = second[:400].decode().split()
        header, index, blobs = map(int, words[:3])
        digest = words[3]
    except (ValueError, IndexError) as error:
        raise InvalidInput("the second line of a tuning table must state its lengths", second[:80], _WAY_OUT) from error
    if (
        min(header, index, blobs) < 0
        or len(rest) != header + index + blobs
        or hashlib.sha256(rest).hexdigest() != digest
    ):
        raise InvalidInput("the checksum in the second line of the tuning table is wrong", "", _WAY_OUT)
    return digest, rest[:header], rest[header : header + index], rest[header + index :]


def _require(holds: bool, what: str, value: object) -> None:
    if not holds:
        raise InvalidInput(f"a tuning table must have {what}", value, "write several tables, or a smaller one")


def _require_limits(ranks: int, entries: int, programs: int) -> None:
    _require(0 < ranks <= MAX_RANKS, f"1 to {MAX_RANKS} ranks", ranks)
    _require(entries <= MAX_ENTRIES, f"at most {MAX_ENTRIES} entries", entries)
    _require(programs <= MAX_PROGRAMS, f"at most {MAX_PROGRAMS} programs", programs)


_NUMBER, _TEXT, _OBJECT, _NOTHING = (int,), (str,), (dict,), (type(None),)
_ENTRY_TYPES = {
    "collective": _TEXT,
    "dtype": _TEXT,
    "group": (list, *_NOTHING),
    "root": _NUMBER + _NOTHING,
    "min_bytes": _NUMBER,
    "max_bytes": _NUMBER + _NOTHING,
    "program": _TEXT + _NOTHING,
    "measured": _OBJECT + _NOTHING,
    "certificate": _OBJECT + _NOTHING,
    "provenance": _OBJECT,
    "settings": _OBJECT + _NOTHING,
}
_PROGRAM_TYPES = {
    "digest": _TEXT,
    "target": _TEXT,
    "method": _TEXT,
    "parameters": _OBJECT,
    "collective": _TEXT,
    "root": _NUMBER + _NOTHING,
    "ranks": _NUMBER,
    "order_of_additions": _OBJECT + _NOTHING,
}


def _require_types(value: dict[str, Any], types: Mapping[str, tuple[type, ...]]) -> None:
    """Raise TypeError if a key's value has the wrong type, and KeyError if a key without a default is missing."""
    for key, allowed in types.items():
        if type(value.get(key)) not in (*allowed, *(() if key in value else _NOTHING)):
            raise TypeError(f"{key} is {value[key]!r}")


def _entry(value: dict[str, Any]) -> JobEntry:
    _require_types(value, _ENTRY_TYPES)
    group = value["group"]
    if value.get("settings") is not None:
        from chorale.synth.programs.library_call import LibrarySettings  # noqa: PLC0415 - it imports NumPy

        LibrarySettings.from_json(value["settings"])
        if value["program"] is not None:
            raise TypeError("an entry has a program and settings of the library")
    if group is not None and any(type(rank) is not int for rank in group):
        raise TypeError(f"group is {group!r}")
    return JobEntry(**{**value, "group": None if group is None else tuple(group)})


def _program(value: dict[str, Any], blobs: bytes, most_bytes: int) -> TableProgram:
    _require_types(value, _PROGRAM_TYPES)
    _require(0 < value["ranks"] <= MAX_RANKS, f"programs of 1 to {MAX_RANKS} ranks", value["ranks"])
    start, length = value.pop("text")
    stream = zlib.decompressobj()
    text = stream.decompress(blobs[start : start + length], most_bytes + 1)
    _require(len(text) <= most_bytes, f"programs of at most {MAX_TEXT_BYTES} bytes together", "more")
    if not stream.eof:
        raise ValueError("the text of a program ends too early")
    return TableProgram(**value, text=text, words=())


def _words(index: bytes, blobs: bytes, programs: int) -> list[dict[int, bytes]]:
    words: list[dict[int, bytes]] = [{} for _ in range(programs)]
    left = len(blobs)
    for line in index.decode().splitlines():
        if line.startswith("words "):
            number, rank, start, length, _ = map(int, line.split()[1:])
            if min(number, rank, start, length) < 0 or rank in words[number]:
                raise ValueError(f"words of program {number}, rank {rank}")
            left -= length
            if left < 0:
                raise ValueError("words that overlap")
            words[number][rank] = blobs[start : start + length]
    return words


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _line(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def pack(numbers: Iterable[int]) -> bytes:
    """Encode 64-bit `numbers` compactly: zigzag, then seven bits per byte, lowest bits first.

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
    """Return the numbers that `pack` encoded. Raises ValueError if a number is incomplete or has more than 64 bits."""
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
