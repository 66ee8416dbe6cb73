"""Check that the entries of a tuning table are consistent, and that each of its programs is correct.

Program parsers are imported only for a check, so that reading a table stays fast.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chorale.job.table.layout import FORMAT, Table, TableProgram, pack, parse_table, table_bytes
from chorale.job.table.merging import SizeRange, describe, overlapping
from chorale.runners.engine.library import encode_rank
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import QUEUE_DEPTH, AnyProgram, Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift_code, read_unchecked
from chorale.synth.targets.registry import Lifted

SWITCHES = "switches"
"""Name of the rule that forbids programs in which switches do part of the work."""
Connected = Callable[[int, int], bool]
"""A function that returns whether data can travel from one rank of the job (first argument) to another (second)."""


@dataclass(frozen=True, slots=True)
class TableViolation:
    """A rule that a table breaks. `program` is the digest of the program at fault; None for the table itself."""

    rule: str
    message: str
    program: str | None = None


def checked_table(data: bytes) -> tuple[Table | None, list[TableViolation]]:
    """Return the table in the file content `data`, and all violations except missing links (see `link_violations`).

    If the file is damaged, the table is None, and the only violation says why. Raises InvalidInput if `data` is not
    the content of a table file.
    """
    try:
        table, _ = parse_table(data)
    except InvalidInput as error:
        if not data.startswith(f"{FORMAT}\n".encode()):
            raise
        return None, [TableViolation("file", error.problem)]
    violations = [*_of_entries(table)]
    if not violations and table_bytes(table).split(b"\n", 2)[2] != data.split(b"\n", 2)[2]:
        violations.append(TableViolation("index", "the lines for native readers differ from the header"))
    for digest, program in table.programs.items():
        violations += [TableViolation(rule, message, digest) for rule, message in program_violations(program)]
    return table, violations


def program_violations(program: TableProgram) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) for each fault of a program. Does not check whether the network has the necessary links."""
    if hashlib.sha256(program.text).hexdigest() != program.digest:
        yield "digest", "the text does not match the digest"
    try:
        lifted = read_unchecked(program.text)
    except InvalidInput as error:
        yield "text", str(error)
        return
    found = lifted.program
    yield from _broken_rules(lifted)
    if not isinstance(found, Program | ExecutionPlan) or lifted.findings:
        return
    if program.is_plan != isinstance(found, ExecutionPlan):
        yield "target", f"the table says {program.target}, the program {found.target}"
    facts = found.collective.name.value, found.collective.root, len(found.ranks)
    stated = program.collective, program.root, program.ranks
    for name, says, is_so in zip(("collective", "root", "ranks"), stated, facts, strict=True):
        if says != is_so:
            yield name, f"the table says {says}, the program {is_so}"
    words = words_of(found) if isinstance(found, Program) else ()
    if len(words) != len(program.words):
        yield "words", f"words for {len(program.words)} ranks, of {len(words)}"
    for rank, (new, old) in enumerate(zip(words, program.words, strict=False)):
        if new != old:
            yield "words", f"rank {rank}: the encoding for the engine differs from the text"
    if program.order_of_additions not in (None, additions_document(found)):
        yield "order", "it does not add in the order that the table states"


def text_violations(text: bytes) -> Iterator[tuple[str, str]]:
    """Execute a program symbolically; yield (rule, message) for each fault. Raises InvalidInput if it is no program."""
    return _broken_rules(read_unchecked(text))


def _broken_rules(lifted: Lifted[AnyProgram]) -> Iterator[tuple[str, str]]:
    others = [] if lifted.out_of_place is None else check_program(lifted.out_of_place)
    for fault in (*lifted.findings, *check_program(lifted.program), *others):
        yield fault.rule, fault.message
    if not isinstance(lifted.program, Program | ExecutionPlan):
        yield "target", f"jobs execute XML programs and plans, not {lifted.program.target}"
    elif isinstance(lifted.program, Program) and lifted.program.switches:
        yield SWITCHES, f"{len(lifted.program.switches)} of its processes stand for switches, which jobs do not have"


def link_violations(table: Table, connected: Connected) -> list[TableViolation]:
    """Return a violation for each program and each (sender, receiver) in it that the network does not connect."""
    groups = {(entry.program, entry.group) for entry in table.entries if entry.program is not None}
    found = []
    for digest, group in sorted(groups, key=str):
        ranks = tuple(range(table.ranks)) if group is None else group
        for src, dst in unlinked(table.programs[digest].text, ranks, connected):
            message = f"rank {ranks[src]} sends to rank {ranks[dst]}, and no path of links leads there"
            found.append(TableViolation("link", message, digest))
    return found


def unlinked(text: bytes, ranks: tuple[int, ...], connected: Connected) -> list[tuple[int, int]]:
    """Return the pairs (sender, receiver) in a valid program that the network does not connect.

    ranks: ranks of the job, in the order of the program's ranks
    """
    program = read_unchecked(text).program
    assert isinstance(program, Program | ExecutionPlan)
    return [pair for pair in sorted(program.peers()) if not connected(ranks[pair[0]], ranks[pair[1]])]


def _of_entries(table: Table) -> Iterator[TableViolation]:
    for entry, other in overlapping(table.entries):
        yield TableViolation("overlap", f"{describe(entry)} and {SizeRange.of(other)}")
    for entry in table.entries:
        group = entry.group
        if group is not None and not (len(set(group)) == len(group) and all(0 <= rank < table.ranks for rank in group)):
            yield TableViolation("group", f"{describe(entry)}: not ranks of a job of {table.ranks}")
        if entry.max_bytes is not None and entry.max_bytes < entry.min_bytes:
            yield TableViolation("sizes", f"{describe(entry)}: ends before it begins")
        if entry.program is None:
            continue
        ranks = table.ranks if group is None else len(group)
        program = table.programs.get(entry.program)
        if program is None:
            yield TableViolation("program", f"{describe(entry)}: the table has no program {entry.program[:12]}")
        elif (program.collective, program.root, program.ranks) != (entry.collective, entry.root, ranks):
            yield TableViolation(
                "program",
                f"{describe(entry)}: its program has another collective, root or number of ranks",
                entry.program,
            )


def table_program(text: bytes, target: str, method: str, parameters: Mapping[str, Any]) -> TableProgram:
    """Return the program in `text`, with its encoding for the engine. Raises the same errors as `lift`.

    text: content of a program file that `lift` can parse
    target, method, parameters: origin of the program, for information only
    """
    program = lift_code(text)
    assert isinstance(program, Program | ExecutionPlan)
    return TableProgram(
        hashlib.sha256(text).hexdigest(),
        target,
        method,
        dict(parameters),
        program.collective.name.value,
        program.collective.root,
        len(program.ranks),
        text,
        words_of(program) if isinstance(program, Program) else (),
        additions_document(program),
    )


def words_of(program: Program) -> tuple[bytes, ...]:
    """Return each rank's part of `program` in the engine's encoding, packed for a table file."""
    shape = len(program.ranks), program.chunks, program.in_place
    depth = QUEUE_DEPTH[program.protocol]
    return tuple(pack(encode_rank(program.collective, *shape, depth, part)) for part in program.ranks)
