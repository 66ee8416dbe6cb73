"""The edge of the runner: writes jobs, starts launches, waits for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from chorale.runners.msccl.environment import Mode
from chorale.runners.msccl.job import EXECUTABLE
from chorale.runners.msccl.results import LaunchResult
from chorale.runners.places.place import STDERR, STDOUT, Host, ProcessSpec

_POLL_S = 0.05


def write_job(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a job into `folder`, scripts so that they can be executed."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith(EXECUTABLE) else 0o644)


def launch(place: Host, folder: Path, mode: Mode, parts: int, deadline_s: float) -> LaunchResult:
    """Run the job in `folder` in a mode until it ends, or is killed when the monotonic clock shows `deadline_s`.

    parts: how many test programs it starts, one after the other
    """
    started = place.start(ProcessSpec((str(folder / "run.sh"), mode)))
    try:
        while (code := started.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if code is None:
            started.kill()
        output = started.read(STDOUT).decode(errors="replace")
        errors = started.read(STDERR).decode(errors="replace")
    finally:
        started.close()
    return LaunchResult(code, output, errors, tuple(_logs(folder, f"{mode}.{part}.*") for part in range(parts)))


def _logs(folder: Path, names: str) -> tuple[str, ...]:
    return tuple(path.read_text(errors="replace") for path in sorted((folder / "logs").glob(names)))
