"""The processes of one request: started on their hosts, watched, and read for the cause when the request fails."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, StuckInstruction
from chorale.runners.oneccl.build import INTERPRETER
from chorale.runners.process_launch.base import STDERR, Host, ProcessHandle, ProcessSpec

FIXED_ENVIRONMENT: Mapping[str, str] = {
    "CCL_ATL_TRANSPORT": "ofi",
    # The interpreter itself gives oneCCL its turns: a worker thread would start operations out of order.
    "CCL_WORKER_OFFLOAD": "0",
    "CCL_WORKER_COUNT": "1",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ALGO_FALLBACK": "0",  # an algorithm that does not serve is an error instead of another algorithm
    "CCL_LOG_LEVEL": "error",
    "CCL_ROOT": ".",
    "FI_PROVIDER": "tcp",
    "FI_PROVIDER_PATH": ".",
    "LD_LIBRARY_PATH": ".",
}
_POLL_S = 0.01
_WATCH_S = 0.03  # while others measure
_KEY_STORE = "key-store"


class RankProcesses:
    """One process on each host, in the order of the ranks; a context manager that leaves nothing behind."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._started: list[ProcessHandle] = []

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started:
            started.kill()
        for started in self._started:
            started.close()
        self._started.clear()

    def start(
        self,
        program: Mapping[str, bytes],
        tasks: Sequence[str],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        """Start all ranks, `program` being the files of the interpreter.

        Without rank 0's key-value store by `deadline`, or when rank 0 ends, the others stay out.
        """
        local = local_ranks(self._hosts)
        key_store: dict[str, bytes] = {}
        for rank, (host, task) in enumerate(zip(self._hosts, tasks, strict=True)):
            files = {**program, "task": task.encode(), **key_store}
            index, size = local[rank]
            variables = {**FIXED_ENVIRONMENT, "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size), **environment}
            self._started.append(host.start(ProcessSpec((f"./{INTERPRETER}", host.address), variables, files)))
            if rank == 0:
                address = self._key_store(deadline)
                if not address:
                    return
                key_store[_KEY_STORE] = address

    def codes(self) -> list[int | None]:
        """Return the exit codes of those that were started, None for those that run."""
        return [started.poll() for started in self._started]

    def texts(self, name: str) -> list[str]:
        """Return what each has written to its file `name`."""
        return [started.read(name).decode(errors="replace") for started in self._started]

    def last_error(self, rank: int) -> str:
        """Return the last line that `rank` wrote to its standard error."""
        lines = self._started[rank].read(STDERR).decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1].split()) if lines else "no reason given"

    def wait(self, deadline: float) -> bool:
        """Wait until all have done all runs (True), one has ended, or `deadline` passes (both False)."""
        while not all(text.endswith("end\n") for text in self.texts("results")):
            if any(code is not None for code in self.codes()) or time.monotonic() > deadline:
                return False
            time.sleep(_WATCH_S)
        return True

    def wait_for_reports(self, deadline: float) -> None:
        """Wait until all have ended, at most until `deadline`."""
        while None in self.codes() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _key_store(self, deadline: float) -> bytes:
        rank = self._started[0]
        while time.monotonic() < deadline and rank.poll() is None:
            if address := rank.read(_KEY_STORE):
                return address
            time.sleep(_POLL_S)
        return b""


def local_ranks(hosts: Sequence[Host]) -> list[tuple[int, int]]:
    """Return for each rank its position among those at the same address, and how many those are."""
    addresses = [host.address for host in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]


LIMIT_PASSED = 3
"""Exit code of an interpreter that ran into the time limit."""

_REFUSED = "can not select algo"  # what oneCCL says of an algorithm that does not serve a collective
_FREE = "could go on"
_SHOWN = 4


def wrong_result_failure(names: Sequence[str], complaints: Sequence[Sequence[str]]) -> RunStopped | None:
    """Return the failure of the first run that any rank complains about; `complaints` by rank, then by run."""
    for run, of_ranks in enumerate(zip(*complaints, strict=True)):
        wrong = [rank for rank, complaint in enumerate(of_ranks) if complaint]
        if wrong:
            message = f"{names[run]} gave a wrong result on {len(wrong)} of {len(of_ranks)} ranks"
            message += f"; rank {wrong[0]}: {of_ranks[wrong[0]]}"
            return RunStopped(FailureKind.WRONG_RESULT, message, wrong[0])
    return None


def crash_failure(processes: RankProcesses) -> RunStopped | None:
    """Return which rank died of what, None if none did. A rank that loses another gives up with an error of its own.

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
