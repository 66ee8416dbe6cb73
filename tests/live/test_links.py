"""Links that a process carries: never too fast, late as told, and nothing of them outlives its fabric."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from fractions import Fraction

import psutil
import pytest

from chorale.runners.fabric.fabric import fabrics, find_fabric, is_wire_running, take_down
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.self_test import Exchange, Spans, busy_streams, duration_s, needed_s, run_exchanges
from chorale.runners.process_launch.processes import ProcessSpec
from chorale.synth.errors import Unavailable
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.live.conftest import Up
from tests.waiting import until

pytestmark = pytest.mark.alone

NAME = f"links-{os.getpid()}"


@pytest.mark.parametrize(
    ("spec", "link_mbps"), [("hypercube:3", 25), ("switch:4,1", 50), ("uniring:1,4", 25), ("ring:4", 200)]
)
def test_nothing_is_faster_than_its_links(spec: str, link_mbps: int, up: Up) -> None:
    fabric = up(spec, link_mbps)
    plan = plan_fabric(parse_topology(spec), Fraction(link_mbps), NAME)
    exchanges = _random_exchanges(plan, 60, seed=7)
    speed = highest_speed(plan, run_exchanges(fabric, exchanges, 60), exchanges)
    assert 0.4 < speed <= 1


def highest_speed(plan: FabricPlan, times: list[Spans], exchanges: Sequence[Exchange]) -> float:
    """Return the largest ratio of the time that links need for a stream, or for all of an exchange, to what it took."""
    speeds = [0.0]
    for spans, (_, sizes_bytes) in zip(times, exchanges, strict=True):
        speeds.append(needed_s(plan, sizes_bytes) / duration_s(spans))
        for stream, (start_s, end_s) in spans.items():
            alone_s = needed_s(plan, {stream: sizes_bytes[stream]})
            speeds.append(alone_s / (end_s - start_s))
    return max(speeds)


def test_a_link_of_its_own_rate(up: Up) -> None:
    fabric = up("scaled(ring:4;link=1>0;factor=1/5)", 25)
    times = run_exchanges(fabric, [(0.001, {(1, 0): 2**16}), (0.001, {(0, 1): 2**16})], 30)
    slow, plain = map(duration_s, times)
    assert 2**19 / 5e6 <= slow < 10 * 2**19 / 5e6
    assert 2**19 / 25e6 <= plain < 2**19 / 5e6


def test_not_even_small_messages_go_against_a_one_way_link(up: Up) -> None:
    fabric = up("uniring:1,4", Fraction(1, 10))  # a packet with a byte takes 4 ms on each link
    back = [(0.001, {(1, 0): 1}), (0.001, {(1, 0): 50})]
    times = list(map(duration_s, run_exchanges(fabric, [*back, *[(0.001, {(0, 1): 1})] * 20], 30)))
    assert min(times[:2]) >= 3 * 53 * 8 / 1e5
    assert 53 * 8 / 1e5 <= min(times[2:]) < 3 * 53 * 8 / 1e5


def test_a_fabric_whose_links_have_ended_says_so(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    fabric = up("ring:4")
    assert is_wire_running(fabric.wire_pid, fabric.pid)
    os.kill(fabric.wire_pid, signal.SIGKILL)
    until(lambda: not is_wire_running(fabric.wire_pid, fabric.pid))
    with pytest.raises(Unavailable, match=f"process {fabric.wire_pid} has ended; run `chorale fabric down {NAME}`"):
        find_fabric(fabric.topology_id, NAME)
    shown = chorale(capsys, "fabric", "status", "--json").document["fabrics"]
    assert [item["links"]["broken"] for item in shown if item["name"] == NAME] == [True]
    assert "BROKEN" in chorale(capsys, "fabric", "status").stdout
    again = chorale(capsys, "fabric", "up", "ring:4", "--link-mbps", 20, "--name", NAME)
    assert again.code == 3
    assert "has ended" in again.stderr
    take_down(fabric)
    assert all(item.name != NAME for item in fabrics())


def test_a_device_that_is_deleted_costs_nothing(up: Up) -> None:
    fabric = up("ring:4", 25)
    with contextlib.closing(fabric.hosts()[0].start(ProcessSpec(("ip", "link", "delete", "to1")))) as deleting:
        until(lambda: deleting.poll() == 0)
    wire = psutil.Process(fabric.wire_pid)
    before_s = sum(wire.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(wire.cpu_times()[:2]) - before_s < 0.1
    assert duration_s(run_exchanges(fabric, [(0.001, {(1, 2): 2**14})], 30)[0]) >= 2**17 / 25e6


@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGTERM], ids=lambda cause: cause.name)
def test_links_end_with_their_holder(cause: signal.Signals, up: Up) -> None:
    fabric = up("hypercube:3")
    os.kill(fabric.pid, cause)
    until(lambda: not is_wire_running(fabric.wire_pid, fabric.pid))
    assert not [process for process in psutil.process_iter(["cmdline"]) if NAME in (process.info["cmdline"] or [])]


def _random_exchanges(plan: FabricPlan, count: int, seed: int) -> list[Exchange]:
    """Return exchanges of some of all streams between neighbours, of 1 to 64 KiB, with pauses from none to 10 ms."""
    draw = random.Random(seed)
    streams = busy_streams(plan)
    return [
        (
            draw.choice((0.0, 0.002, 0.01)),
            {stream: 2 ** draw.randint(10, 16) for stream in draw.sample(streams, draw.randint(1, len(streams)))},
        )
        for _ in range(count)
    ]
