"""The process that keeps the namespaces of a fabric alive; when it ends, the kernel removes all of them.

Namespaces of a fabric are known only inside the holder's own mount namespace, on a file system in memory. So there is
nothing that a killed command could leave behind, and nothing to clean up after a crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from chorale.synth.errors import Unavailable

_MARK = "chorale-fabric"
_STATE = "run/chorale/fabric.json"
_END_LIMIT_S = 10.0

# It ends with the pipe on its standard input, unless it was handed the state of a finished fabric to keep. From then
# on it waits for a line that nobody writes.
_HOLD = f"""
mount -t tmpfs none /run && mkdir /run/netns /run/chorale && mkfifo /run/chorale/never || exit 1
ip netns add trial && ip netns delete trial || exit 1
echo $$
read -r state && [ -n "$state" ] || exit 1
printf '%s\\n' "$state" > /run/chorale/new && mv /run/chorale/new /{_STATE} || exit 1
echo kept
exec </dev/null >/dev/null 2>&1
read -r state <>/run/chorale/never
"""

_TOOLS = ("ip", "tc", "unshare", "nsenter", "setsid", "mount")
_WAY_OUT = "allow unprivileged user namespaces in the kernel, or use root (in a container: with CAP_SYS_ADMIN)"


class NamespaceHolder:
    """A holder that still belongs to this process: it ends with it, or with `close`, unless `keep` was called.

    Raises Unavailable where a tool is missing, or this user may make namespaces in no way.
    """

    def __init__(self, name: str) -> None:
        require_tools()
        self.is_detached = False
        refusals = []
        for in_user_namespace in (True, False) if os.geteuid() == 0 else (True,):
            self.in_user_namespace = in_user_namespace
            self._process = _start(name, in_user_namespace)
            answer = self._answer()
            if answer.isdigit():
                self.pid = int(answer)
                return
            refusals.append(self._complaint())
        raise Unavailable("a fabric needs network namespaces", "; ".join(refusals), _WAY_OUT)

    def run(self, script: str) -> str:
        """Run a shell script inside and return its output; raises Unavailable with what it said if it fails."""
        command = [*enter_command(self.pid, self.in_user_namespace, "--mount", "--net"), "sh"]
        done = subprocess.run(  # noqa: S603 - the script is our own
            command, input=script, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            rule = "a fabric needs veth devices, tbf queues and routes of the kernel"
            raise Unavailable(rule, done.stderr or done.stdout, "use a kernel that has them, with iproute2")
        return done.stdout

    def detach(self, state: str) -> None:
        """Hand over the fabric: from now on the holder stays, with `state` (one line) for those who look for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{state}\n")
            self._process.stdin.flush()
        if self._answer() != "kept":
            raise Unavailable("the holder of a fabric must stay alive", self._complaint(), "bring it up again")
        self.is_detached = True
        self._close_pipes()

    def close(self) -> None:
        """End the holder if it was not kept. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            end_process(self.pid)
            self._close_pipes()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _complaint(self) -> str:
        """Return the last line that a holder wrote before it ended."""
        assert self._process.stderr is not None
        lines = self._process.stderr.read().split("\n")
        self._close_pipes()
        return next((line for line in reversed(lines) if line.strip()), "the holder ended")

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def require_tools() -> None:
    """Raise Unavailable if a program that sets up fabrics is missing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        way_out = "install iproute2 and util-linux, on Debian: apt-get install iproute2 util-linux"
        raise Unavailable(f"a fabric needs the commands {', '.join(_TOOLS)}", f"no {', '.join(missing)}", way_out)


def enter_command(pid: int, in_user_namespace: bool, *namespaces: str) -> tuple[str, ...]:
    """Return the command that starts the command after it in `namespaces` (options of nsenter) of holder `pid`."""
    user = ("--user", "--preserve-credentials") if in_user_namespace else ()
    return ("nsenter", f"--target={pid}", *user, *namespaces)


def detached_states() -> Iterator[tuple[int, str]]:
    """Yield (pid, state) of every holder of this user that has been kept."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _is_holder(process):
                yield process.pid, Path(f"/proc/{process.pid}/root/{_STATE}").read_text()


def end_process(pid: int) -> None:
    """Kill process `pid`, if it still runs, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_LIMIT_S
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.005)


def _start(name: str, in_user_namespace: bool) -> subprocess.Popen[str]:
    """Start a holder that is nobody's child, so that whoever ends it need not be the one who started it."""
    user: Sequence[str] = ("--user", "--map-root-user") if in_user_namespace else ()
    command = ["setsid", "--fork", "unshare", *user, "--mount", "--net", "sh", "-c", _HOLD, _MARK, name]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/")  # noqa: S603
    process.wait()
    return process


def _is_holder(process: psutil.Process) -> bool:
    arguments = process.cmdline()
    return arguments[:1] == ["sh"] and arguments[3:4] == [_MARK] and process.uids().effective == os.geteuid()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
