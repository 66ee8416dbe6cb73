"""A command in a process of its own, and what it costs."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from chorale.synth.errors import CheckFailed

COMMAND = (
    "import sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    "finally:\n    print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
)
"""Ends with the facts of the process as Linux has them: what `wait4` says of memory counts that of the parent too."""


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a process took and wrote.

    processor_s: user and system time, of the processes that it waited for too
    passed_s:    between its start and its end
    peak_mb:     the largest resident size in 10**6 bytes, where it is `COMMAND` that ran; else None
    """

    processor_s: float
    passed_s: float
    peak_mb: float | None
    output: str
    errors: str


def cost_of(
    words: Sequence[str], *, code: str = COMMAND, environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> ProcessCost:
    """Run `code` in this Python with these arguments. CheckFailed if it fails, or has not ended after `timeout_s`."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began_s = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", code, *words], env=environment, stdout=output, stderr=errors
        )
        usage = _waited(process, timeout_s)
        passed_s = time.perf_counter() - began_s
        if process.returncode:
            raise CheckFailed("a command of the benchmark must succeed", " ".join(words), _text(errors)[-300:])
        written = _text(errors)
        return ProcessCost(usage.ru_utime + usage.ru_stime, passed_s, _peak_mb(written), _text(output), written)


def _waited(process: subprocess.Popen[bytes], timeout_s: float) -> resource.struct_rusage:
    """Wait for the end of a process; return what it used. It is killed, and fails, at `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.monotonic() > deadline_s:
            process.kill()
            deadline_s = float("inf")
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 1.2)


def _peak_mb(status: str) -> float | None:
    """Return the peak of the resident size by a text of /proc/PID/status at the end of `status`."""
    peaks_kb = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(peaks_kb[-1]) * 1024 / 10**6 if peaks_kb else None


def _text(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()
