"""What others see of a watch: its file, its history in MLflow, and metrics."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.tracking.mlflow_values import MetricPoint
from chorale.tuner.watch.history import LinkHistory
from chorale.tuner.watch.link_monitor import LinkMonitor, LinkView, MonitorOptions
from chorale.tuner.watch.metrics import serve_metrics
from chorale.tuner.watch.publishing import ReceiverChange
from chorale.tuner.watch.records import WatchRecords

_LINK = (0, 1)


def _view(dead: bool = False) -> LinkView:
    monitor = LinkMonitor(1e8, MonitorOptions(threshold=10.0), 50.0)
    for second in range(10):
        monitor.on_ping(100.0 + second, not dead, None if dead else 1e-3)
        monitor.on_rate(100.0 + second, 1e8)
    return monitor.view()


def test_a_monitor_that_resumes_is_as_the_one_before() -> None:
    first = LinkMonitor(1e8, MonitorOptions(threshold=10.0))
    for second in range(10):
        first.on_ping(float(second), False)
    again = LinkMonitor(1e8, MonitorOptions(threshold=10.0))
    again.resume(first.saved(), first.view().since_s)
    assert (again.state, again.rate_bits_per_s) == (first.state, 0.0)
    assert again.view().since_s == first.view().since_s
    assert again.saved() == first.saved()


def test_history_is_logged_when_due_and_when_a_state_changes_and_waits_while_mlflow_is_away() -> None:
    logged: list[MetricPoint] = []
    is_away = True

    def log(points: Sequence[MetricPoint]) -> None:
        if is_away:
            raise Unavailable("MLflow must be reachable", "no answer", "start it")
        logged.extend(points)

    history = LinkHistory(log, 60.0)
    history.note({_LINK: _view()}, 1000.0)
    history.note({_LINK: _view()}, 1001.0)  # nothing new
    history.note({_LINK: _view(dead=True)}, 1002.0)
    (change,) = history.deliver()
    assert (change.receiver, history.deliver()) == ("history", [])
    is_away = False
    assert history.deliver() == [ReceiverChange("history", None)]
    states = [(point.step, point.value) for point in logged if point.name == "link/0-1/state"]
    assert states == [(1000, 0.0), (1002, 3.0)]
    assert {point.name.rsplit("/", 1)[1] for point in logged} == {"state", "lost", "rate_bits_per_s", "latency_s"}


def test_metrics_are_served_on_this_machine_until_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    records = WatchRecords(tmp_path, "cube")
    records.views, records.waiting = {_LINK: _view()}, {"mlflow": 2}
    records.note({"event": "publish"})
    end = serve_metrics(records, "cube", port)
    with pytest.raises(Unavailable, match="the port of the metrics must be free"):
        serve_metrics(records, "cube", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    end()
    assert 'chorale_link_state{fabric="cube",link="0>1"} 0.0' in lines
    assert 'chorale_link_rate_bits_per_second{fabric="cube",link="0>1"} 1e+08' in lines
    assert 'chorale_link_probes_total{fabric="cube",link="0>1"} 10.0' in lines
    assert 'chorale_watch_events_total{event="publish",fabric="cube"} 1.0' in lines
    assert 'chorale_watch_waiting{fabric="cube",receiver="mlflow"} 2.0' in lines


def test_rates_at_which_links_carry_bytes(tmp_path: Path) -> None:
    records = WatchRecords(tmp_path, "cube")
    records.note_carried({_LINK: 1000}, 100.0)
    assert records.carried_bits_per_s == {}
    records.note_carried({_LINK: 251_000}, 102.0)
    assert records.carried_bits_per_s == {_LINK: 1e6}
    records.note_carried({_LINK: 0}, 103.0)  # a fabric that was brought up anew
    assert records.carried_bits_per_s == {_LINK: 0.0}
