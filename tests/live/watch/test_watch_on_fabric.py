"""`chorale watch` as a process, on a real emulated fabric whose links are cut, mended and slowed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from chorale.job.settings import read_table
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.synth.topology.spec import parse_topology
from tests.live.support import fabric_of
from tests.live.watch import cables
from tests.waiting import until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

_NAME = f"watch-{os.getpid()}"
_SPEC = "complete:4"
_LIMIT_S = 200.0


class WatchProcess:
    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        home = folder / "home"
        if not home.exists():
            home.mkdir(mode=0o700)
        path = folder / "fabric.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "chorale", "watch", str(path), "--json"]
        environment = {**os.environ, "CHORALE_HOME": str(home)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> WatchProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until(lambda: any(map(holds, list(self.events))), _LIMIT_S, lambda: self.events)
        return next(filter(holds, self.events))

    def published(self, after_s: float = 0.0) -> dict[str, Any]:
        return self.wait_for(lambda event: event["event"] == "publish" and event["time_s"] > after_s)

    def end(self, number: int = signal.SIGTERM) -> int:
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join()
        gone, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, [process.cmdline() for process in alive]
        assert len(gone) == len(children)
        return code


@pytest.fixture
def fabric() -> Iterator[EmulatedFabric]:
    with fabric_of(_NAME, "chorale watch", _SPEC) as up:
        yield up


def _config(tmp_path: Path, **more: Any) -> dict[str, Any]:
    table = {"table": str(tmp_path / "fabric.table")}
    return {"name": "live", "topology": _SPEC, "fabric": _NAME, "sizes": [65536], **table, **more}


def test_a_cut_a_mended_and_a_slow_link(fabric: EmulatedFabric, tmp_path: Path) -> None:
    with WatchProcess(_config(tmp_path), tmp_path) as watch:
        first = watch.published()
        cut_s = time.time()
        cables.cut(fabric, (0, 1))
        second = watch.published(cut_s)
        assert second["spec"] == f"without({_SPEC};link=0>1;link=1>0)"
        assert read_table(tmp_path / "fabric.table")[1] == second["table"]
        states = [event for event in watch.events if event["event"] == "state"]
        assert {event["link"] for event in states} == {"0>1", "1>0"}
        assert max(event["time_s"] for event in states) - cut_s < 10
        mended_s = time.time()
        cables.mend(fabric, parse_topology(_SPEC), (0, 1))
        assert watch.published(mended_s)["table"] == first["table"]
        slowed_s = time.time()
        cables.slow_down(fabric, (2, 3), 10**7)
        slow = watch.wait_for(lambda event: event["event"] == "state" and event["time_s"] > slowed_s)
        assert (slow["to"], slow["link"] in ("2>3", "3>2")) == ("slow", True)
        assert slow["rate"] == pytest.approx(10e6, rel=0.1)
        assert "factor=1/10" in watch.published(slowed_s)["spec"]
        assert watch.end() == 0


def test_healthy_links_under_load_raise_no_alarm(fabric: EmulatedFabric, tmp_path: Path) -> None:
    with WatchProcess(_config(tmp_path, canary={"seconds": 0}), tmp_path) as watch:
        watch.published()
        sender = "import socket,time\ns=socket.create_connection(('10.99.0.2', 5000)); end=time.time()+15\n"
        sender += "while time.time()<end: s.sendall(bytes(1<<16))"
        receiver = "import socket\ns=socket.create_server(('10.99.0.2', 5000)); c,_=s.accept()\n"
        receiver += "while c.recv(1<<20): pass"
        sink = subprocess.Popen([*fabric.command_prefix(1), sys.executable, "-c", receiver])
        time.sleep(1.0)
        source = subprocess.Popen([*fabric.command_prefix(0), sys.executable, "-c", sender])
        assert source.wait(60) == 0
        assert sink.wait(60) == 0
        assert [event for event in watch.events if event["event"] == "state"] == []
        assert watch.end(signal.SIGINT) == 130


def test_one_that_was_killed_goes_on_and_publishes_nothing_twice(fabric: EmulatedFabric, tmp_path: Path) -> None:
    config = _config(tmp_path, canary={"seconds": 0}, plan_failures=False)
    with WatchProcess(config, tmp_path) as watch:
        watch.published()
        cut_s = time.time()
        cables.cut(fabric, (0, 1))
        second = watch.published(cut_s)
        time.sleep(1.5)  # its state is written each second
    with WatchProcess(config, tmp_path) as again:  # `with` kills
        resumed = again.wait_for(lambda event: event["event"] == "resume")
        assert resumed["table"] == second["table"]
        lost_s = time.time()
        for node in (0, 1, 2):
            cables.cut(fabric, (node, 3))
        without = again.published(lost_s)
        assert without["ranks"] == [0, 1, 2]
        assert read_table(tmp_path / "fabric.table")[0].ranks == 3
        assert [event["event"] for event in again.events if event["event"] == "publish"] == ["publish"]
        state = json.loads((tmp_path / "home" / "watch" / "live" / "state.json").read_text())
        assert {row["link"] for row in state["links"] if row["state"] == "dead"} >= {"0>1", "1>0", "2>3", "3>2"}
        assert again.end() == 0
