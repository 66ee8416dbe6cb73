"""The processes of one request: started on their places, watched until all are done or one is not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chorale.runners.oneccl.wheels import OneCclParts
from chorale.runners.places.place import STDERR, Host, ProcessHandle, ProcessSpec

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
    """One process for each place, in the order of the ranks; a context manager that leaves nothing behind."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._places = hosts
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
        interpreter: Path,
        parts: OneCclParts,
        tasks: Sequence[str],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        """Start all ranks. Without rank 0's key-value store by `deadline`, or when rank 0 ends, the others stay out."""
        program, libraries = interpreter.read_bytes(), parts.runtime_files()
        local = local_ranks(self._places)
        key_store: dict[str, bytes] = {}
        for rank, (place, task) in enumerate(zip(self._places, tasks, strict=True)):
            files = {"interpreter": program, "task": task.encode(), **libraries, **key_store}
            index, size = local[rank]
            variables = {**FIXED_ENVIRONMENT, "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size), **environment}
            self._started.append(place.start(ProcessSpec(("./interpreter", place.address), variables, files)))
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
    addresses = [place.address for place in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]
