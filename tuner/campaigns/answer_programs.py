"""The answer of a campaign as program files, each for its range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.tuner.campaigns.answer import TableEntry, table_ranges


def table_programs(chosen: Sequence[TableEntry], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return a program for every range of sizes that one serves, by the name of its file; names sort by size.

    chosen: the answer at each size, sizes ascending
    read:   program id -> its text, as it was measured

    A program says which sizes it is for, so that the runtime's own algorithm serves ranges of a baseline, and what is
    below or above all sizes that were measured.
    """
    if not chosen:
        return {}
    smallest, largest = chosen[0].size_bytes, max(choice.result.measured_bytes for choice in chosen)
    files = {}
    for number, one in enumerate(table_ranges(chosen), 1):
        if one.entry.trial is None:
            continue
        program = lift(read(one.entry.trial.program_id))
        first = max(one.first_bytes, smallest)
        last = largest if one.last_bytes is None else one.last_bytes
        text = target_named(program.target).emit(replace(program, min_bytes=first, max_bytes=last))
        files[f"{number:02d}-{first}-{last}.xml"] = text.encode()
    return files
