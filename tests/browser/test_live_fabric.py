"""The page beside a real watch of a real emulated fabric: what links carry, a cable that is cut, a hold."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect

from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.synth.topology.spec import parse_topology
from tests.browser.conftest import Serving
from tests.browser.test_page import photographed
from tests.live.support import require_fabrics
from tests.live.watch import cables

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

_SPEC, _NAME = "hypercube:3", f"page-{os.getpid()}"
_BUSY = ((0, 2), (2, 6), (5, 7), (4, 5))
_BUSY_S = 30.0
_LIMIT_MS = 120_000
_LINKS_PX, _EVENTS_PX = 965, 1776
"""How much of the page has the picture of links, and how much has what changed as well."""

_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), 10)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    connection.sendall(bytes(1 << 16))
"""
_RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print(flush=True)
connection, _ = server.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
print(total)
"""


def fill(fabric: EmulatedFabric, src: int, dst: int, seconds: float) -> int:
    """Send from rank to rank as fast as the link allows; return how many bytes arrived."""
    python = (sys.executable, "-S", "-c")
    receiving = [*fabric.command_prefix(dst), *python, _RECEIVE, fabric.address(dst)]
    with subprocess.Popen(receiving, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        sending = [*fabric.command_prefix(src), *python, _SEND, fabric.address(dst), str(seconds)]
        subprocess.run(sending, check=True, timeout=seconds + 60)
        return int(receiver.communicate(timeout=60)[0])


@pytest.fixture
def fabric() -> Iterator[EmulatedFabric]:
    require_fabrics(_NAME, "the page of a fabric")
    up = bring_up(parse_topology(_SPEC), Fraction(100), _NAME, is_tested=False)
    yield up
    take_down(up)


@pytest.fixture
def watch(fabric: EmulatedFabric, service: Serving, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    file = tmp_path / "fabric.yaml"
    table = str(tmp_path / "fabric.table")
    config = {"name": "live", "topology": _SPEC, "fabric": fabric.name, "table": table, "canary": {"seconds": 30}}
    file.write_text(yaml.safe_dump(config))
    environment = {**os.environ, "CHORALE_HOME": str(service.home)}
    process = subprocess.Popen([sys.executable, "-m", "chorale", "--quiet", "watch", str(file)], env=environment)
    yield process
    process.terminate()
    process.wait(60)
    shutil.rmtree(service.home / "watch")


def test_loads_and_a_cut_cable_are_seen_and_a_hold_is_obeyed(
    page: Page, fabric: EmulatedFabric, service: Serving, watch: subprocess.Popen[bytes]
) -> None:
    page.goto("/#fabrics")
    page.get_by_role("link", name="live").click(timeout=_LIMIT_MS)
    expect(page.get_by_text("all links are healthy").first).to_be_visible(timeout=_LIMIT_MS)
    with ThreadPoolExecutor(len(_BUSY)) as pool:
        busy = [pool.submit(fill, fabric, src, dst, _BUSY_S) for src, dst in _BUSY]
        loaded = page.locator("svg path title", has_text="0>2 is healthy").filter(has_text="of it used")
        expect(loaded).to_be_attached(timeout=_LIMIT_MS)
        photographed(page, "fabric-loaded", _LINKS_PX)
        cables.cut(fabric, (0, 1))
        expect(page.locator("svg path title", has_text="0>1 is dead")).to_be_attached(timeout=_LIMIT_MS)
        photographed(page, "fabric-cut", _LINKS_PX)
        assert all(future.result() > 0 for future in busy)
        published = page.get_by_role("cell", name="s after the first sign: link 0>1 is dead, link 1>0 is dead")
        expect(published).to_be_visible(timeout=_LIMIT_MS)
        photographed(page, "fabric", _EVENTS_PX)
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_text("held: nothing is published")).to_be_visible(timeout=_LIMIT_MS)
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("button", name="Hold")).to_be_visible(timeout=_LIMIT_MS)
    assert watch.poll() is None
