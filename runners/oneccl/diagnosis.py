"""From what the processes of a request left, why it failed."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from chorale.runners.api import FailureKind
from chorale.runners.execution.failure import DeadlinePassed, RunStopped, StuckInstruction
from chorale.runners.oneccl.processes import RankProcesses

LIMIT_PASSED = 3
"""Exit code of an interpreter that ran into the time limit."""

_REFUSED = "can not select algo"  # what oneCCL says of an algorithm that does not serve a collective
_FREE = "could go on"
_SHOWN = 4


def wrong_result_failure(names: Sequence[str], complaints: Sequence[Sequence[str]]) -> RunStopped | None:
    """Return the end at the first run that any rank complains about; `complaints` by rank, then by run."""
    for run, of_ranks in enumerate(zip(*complaints, strict=True)):
        wrong = [rank for rank, complaint in enumerate(of_ranks) if complaint]
        if wrong:
            message = f"{names[run]} gave a wrong result on {len(wrong)} of {len(of_ranks)} ranks"
            message += f"; rank {wrong[0]}: {of_ranks[wrong[0]]}"
            return RunStopped(FailureKind.WRONG_RESULT, message, wrong[0])
    return None


def crash_failure(processes: RankProcesses) -> RunStopped | None:
    """Return who died of what, None if nobody did. A rank that loses another gives up with an error of its own.

    A rank that ends because oneCCL has no such algorithm is a rejection.
    """
    codes = [(rank, code) for rank, code in enumerate(processes.codes()) if code is not None]
    for rank, code in codes:
        if code < 0 and code not in (-signal.SIGALRM, -signal.SIGABRT):
            return RunStopped(FailureKind.CRASH, f"rank {rank} was killed by {signal.Signals(-code).name}", rank)
    for rank, code in codes:
        if code not in (LIMIT_PASSED, -signal.SIGALRM):
            reason = processes.last_error(rank)
            kind = FailureKind.REJECTED if _REFUSED in reason else FailureKind.CRASH
            return RunStopped(kind, f"rank {rank} ended with code {code}: {reason}", rank)
    return None


def timeout_failure(
    processes: RankProcesses, names: Sequence[str]
) -> tuple[RunStopped, dict[int, list[StuckInstruction] | None]]:
    """Return the end of ranks that ran into the time limit, and where each is stuck, None for one that does not say.

    To blame is a rank that waits for no other. A rank whose process did not even end does not say; others without a
    report hung inside oneCCL, which happens to those that send to it: they do not say only where all processes ended.
    """
    texts, codes = processes.texts("stuck"), processes.codes()
    silent = [rank for rank, code in enumerate(codes) if code is None]
    silent = silent or [rank for rank, text in enumerate(texts) if not text]
    stuck = {rank: None if rank in silent else _stuck_blocks(text) for rank, text in enumerate(texts)}
    free = [rank for rank, places in stuck.items() for _, _, why in places or () if why == _FREE]
    between = {rank: _purpose(texts[rank]) for rank, places in stuck.items() if places == [] and texts[rank]}
    waited = [f", rank {rank} waited for {purpose}" for rank, purpose in list(between.items())[:_SHOWN]]
    stopped = DeadlinePassed(_doing(processes, names) + "".join(waited))
    stopped.rank = free[0] if free else None
    return stopped, stuck


def _doing(processes: RankProcesses, names: Sequence[str]) -> str:
    if not all(processes.texts("joined")):
        return "the ranks looked for one another"
    done = min(text.count("\n") for text in processes.texts("results"))
    return names[done] if done < len(names) else "the ranks took leave"


def _purpose(text: str) -> str:
    """Return what a rank waited for that was not about its blocks."""
    return text.splitlines()[0].split(" ", 2)[2]


def _stuck_blocks(text: str) -> list[StuckInstruction]:
    """Return the unfinished blocks that a rank reports (see interpreter/main.cpp)."""
    lines = [line.split(" ", 3) for line in text.splitlines()]
    return [(int(words[1]), int(words[2]), words[3]) for words in lines if words[0] == "block"]
