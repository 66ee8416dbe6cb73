"""A watch that lives in a Ray cluster whose head is killed and started again, while a job trains."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from chorale.experiments.watch_demo.demo import Json, WatchDemo, WatchProcess, published, read_steps, wait_until
from chorale.experiments.watch_demo.figures import figures, has_enough
from chorale.runners.fabric import detours
from chorale.synth.errors import CheckFailed

_CABLE = (0, 1)
_SIZE_BYTES = 1 << 20
_COMMAND_LIMIT_S = 240.0
_COLLECTIVE_LIMIT_S = 300.0
"""Nobody has routes lead around the cable until the watch is back: a collective that needs it waits so long."""


def restart_the_ray_head(demo: WatchDemo, steps_before: int) -> Json:
    """The head is killed, a cable is cut, the head starts again: the watch goes on and publishes for what is left."""
    log, stop = demo.fresh_files()
    demo = replace(demo, collective_limit_s=_COLLECTIVE_LIMIT_S)
    with socket.create_server(("", 0)) as free:
        address = f"{_node_address()}:{free.getsockname()[1]}"
    events: list[Json] = []
    with _token(demo.folder / "ray-token"), ExitStack() as job:
        with _head(address) as head:
            with _detached(demo, address) as watch:
                job.enter_context(demo.training(log, stop))
                wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
                _kill(head)
                killed_s = time.time()
            events += watch.events
            steps_then = len(read_steps(log))
            wait_until("the job goes on without it", lambda: len(read_steps(log)) >= steps_then + 5)
        fault_s = time.time()
        detours.cut(demo.fabric, _CABLE)
        with _head(address):
            started_s = time.time()
            with _detached(demo, address) as watch:
                resumed_s = watch.events[0]["time_s"]
                wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
                table = str((published(watch, fault_s) or {})["table"])
                wait_until("the job has trained on the new table", lambda: has_enough(read_steps(log), table))
                stop.touch()
                _chorale("watch", str(demo.write_config()), "--stop", "--address", address)
            events += watch.events
    document = figures(read_steps(log), events, fault_s, demo.link_mbps, _SIZE_BYTES)
    tables = [event["table"] for event in events if event["event"] == "publish"]
    return {
        **document,
        "head_away_s": started_s - killed_s,
        "resumed_s": resumed_s - started_s,
        "published_twice": len(tables) - len(set(tables)),
    }


@contextmanager
def _token(path: Path) -> Iterator[None]:
    """Have heads and commands of the `with` share a token of their own, whatever this process was told of Ray's."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _detached(demo: WatchDemo, address: str) -> Iterator[WatchProcess]:
    """Have the watch live in the cluster, and give its events."""
    file = str(demo.write_config())
    wait_until("the cluster takes the watch", lambda: _does("watch", file, "--detach", "--address", address))
    with demo.following(["watch", file, "--follow", "--json", "--address", address]) as watch:
        yield watch


@contextmanager
def _head(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give a Ray head on this machine, which is killed at the end."""
    ray = str(Path(sys.executable).with_name("ray"))
    node, port = address.rsplit(":", 1)
    command = [ray, "start", "--head", "--block", f"--port={port}", f"--node-ip-address={node}"]
    command += ["--include-dashboard=false", "--num-cpus=1", "--disable-usage-stats"]
    process = subprocess.Popen(  # noqa: S603 - Ray's own command
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until("Ray's head listens", lambda: _listens(address))
        yield process
    finally:
        _kill(process)


def _kill(head: subprocess.Popen[bytes]) -> None:
    """Kill the head with all that it has started, as when its machine loses power."""
    with suppress(psutil.NoSuchProcess):
        processes = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30)
    head.wait()


def _node_address() -> str:
    """Return the address by which others know this machine, as Ray takes no loopback one; it sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # without a network
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def _does(*arguments: str) -> bool:
    """Return whether a command does its work; a head that has just begun to listen may refuse it."""
    try:
        _chorale(*arguments)
    except CheckFailed:
        return False
    return True


def _chorale(*arguments: str) -> None:
    """Run a command; CheckFailed with its last words if it fails."""
    command = [sys.executable, "-m", "chorale", *arguments]
    environment = {**os.environ, "RAY_ADDRESS": ""}
    done = subprocess.run(  # noqa: S603 - our own module
        command, env=environment, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
    )
    if done.returncode != 0:
        words = done.stderr.strip().rsplit("\n", 1)[-1]
        raise CheckFailed(f"`chorale {' '.join(arguments)}` must do its work", words, "see what Ray printed")
