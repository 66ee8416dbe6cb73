"""Whether the runtime executed the program: it falls back to its own algorithm without a word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

from chorale.runners.msccl.runtimes import Runtime
from chorale.runners.sizes import format_size

SAME_TIME_TOLERANCE = 0.03
"""Medians that are no further apart at any size may be of one and the same algorithm."""

_REFUSED = re.compile(r"NCCL WARN (.*MSCCL.*)", re.IGNORECASE)


def log_fault(runtime: Runtime, logs: Sequence[str], ranks: int, calls: int) -> str | None:
    """Return what the logs of a proof say against the program, None if they say that it ran.

    logs:  what each process logged, with the subsystems of `runtime`
    calls: how many calls of each rank the program must have executed at least
    """
    loaded = sum(re.search(runtime.loaded, log) is not None for log in logs)
    if loaded < ranks:
        refused = next((match[1].strip() for log in logs if (match := _REFUSED.search(log))), None)
        reason = "its log does not say why" if refused is None else refused
        return f"only {loaded} of {ranks} ranks took the program: {reason}"
    if runtime.scheduled is None:
        return None
    executed = sorted(len(re.findall(runtime.scheduled, log)) for log in logs)[-ranks:]
    if executed[0] < calls:
        return f"the log of a rank has {executed[0]} calls that the program executed, of at least {calls}"
    return None


def time_fault(program_s: Mapping[int, Sequence[float]], library_s: Mapping[int, Sequence[float]]) -> str | None:
    """Return why times by size speak against the program: at every size they are the library's. None if they are not.

    The only sign there is where a runtime logs no calls. A program that is as fast as the library at every size that
    was measured cannot be told from it: measure it at more sizes.
    """
    apart = {size: abs(median(program_s[size]) / median(library_s[size]) - 1) for size in program_s}
    if max(apart.values()) > SAME_TIME_TOLERANCE:
        return None
    shown = ", ".join(f"{format_size(size)} {part:.1%}" for size, part in sorted(apart.items()))
    return f"its times are the library's at every size (apart by {shown}), and its log does not tell calls"
