"""Programs as a table has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from chorale.job.table.model import TableProgram
from chorale.job.table.packing import pack
from chorale.runners.engine.library import encode_rank
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.program import QUEUE_DEPTH
from chorale.synth.targets.lift import lift


def table_program(text: bytes, target: str, method: str, parameters: Mapping[str, Any]) -> TableProgram:
    """Return the program in `text`, a file that `lift` reads, as the engine wants it; raises as `lift` does.

    target, method, parameters: how it was made, for people
    """
    program = lift(text)
    shape = len(program.ranks), program.chunks, program.in_place
    depth = QUEUE_DEPTH[program.protocol]
    words = tuple(pack(encode_rank(program.collective, *shape, depth, part)) for part in program.ranks)
    return TableProgram(
        hashlib.sha256(text).hexdigest(),
        target,
        method,
        dict(parameters),
        program.collective.name.value,
        program.collective.root,
        len(program.ranks),
        text,
        words,
        additions_document(program),
    )
