"""How the parts of a runner say that a run cannot go on, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chorale.runners.api import FailureKind, RunFailure
from chorale.runners.environment import Facts

StuckInstruction = tuple[int, int, str]
"""A block that does not get on, the instruction that it is at, and what it waits for."""

_SHOWN_BLOCKS = 8


class RunStopped(Exception):  # noqa: N818 - control flow inside runners, never shown to people
    """Becomes the RunFailure of the request."""

    def __init__(self, kind: FailureKind, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.rank = rank


class DeadlinePassed(RunStopped):
    """The watchdog's time is over."""

    def __init__(self, what: str) -> None:
        super().__init__(FailureKind.TIMEOUT, f"the time limit passed while {what}")


def run_failure_of(
    stopped: RunStopped, blocked: Mapping[int, Sequence[StuckInstruction] | None], environment: Facts
) -> RunFailure:
    """Return what `stopped` means for the request.

    blocked: after a timeout, where the blocks of each rank are stuck; None for a rank that does not answer. Such a
             rank is to blame: the others wait for it, it hangs or is too busy to say.
    """
    silent = [rank for rank, blocks in blocked.items() if blocks is None]
    stuck = [(rank, *where) for rank, blocks in blocked.items() for where in blocks or ()]
    texts = [stopped.message, *_stuck_texts(stuck), *(f"rank {rank} does not answer" for rank in silent)]
    blame = silent[0] if silent else stopped.rank
    return RunFailure(stopped.kind, "; ".join(texts), blame, environment, tuple(place[:3] for place in stuck))


def _stuck_texts(stuck: list[tuple[int, int, int, str]]) -> list[str]:
    shown = [f"rank {rank} block {block} instruction {step}: {why}" for rank, block, step, why in stuck[:_SHOWN_BLOCKS]]
    return shown + ([f"{len(stuck) - _SHOWN_BLOCKS} more blocks"] if len(stuck) > _SHOWN_BLOCKS else [])
