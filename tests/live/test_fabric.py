"""Fabrics that really come up: what they carry, that they do not mix, and that nothing stays of them."""

import contextlib
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import psutil
import pytest

from chorale.runners.fabric import fabric as holder
from chorale.runners.fabric.fabric import (
    EmulatedFabric,
    detached_states,
    fabrics,
    find_fabric,
    processes_in,
    take_down,
    temporary_fabric,
)
from chorale.runners.process_launch.processes import STDERR, STDOUT, LocalProcess, ProcessSpec
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.live.conftest import Up
from tests.waiting import until

pytestmark = pytest.mark.alone

NAME = f"live-{os.getpid()}"
RARE = "circulant:7,1,3"  # a topology that nobody else on the machine is likely to have up
ONE, OTHER = f"{NAME}-a", f"{NAME}-b"
PATIENCE_S = 10.0


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits for the system to reap it does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def output(process: LocalProcess) -> str:
    until(lambda: process.poll() is not None)
    assert process.poll() == 0, process.read(STDERR).decode()
    return process.read(STDOUT).decode().strip()


def on_rank(fabric: EmulatedFabric, rank: int, *command: str) -> str:
    with contextlib.closing(fabric.hosts()[rank].start(ProcessSpec(command))) as process:
        return output(process)


RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    while connection.recv(2**16):
        pass
    connection.sendall(b"done")
"""
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as connection:
    start = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(4)
    print(time.monotonic() - start)
"""


def transfer_s(fabric: EmulatedFabric, source: int, target: int, size_bytes: int) -> float:
    python = (sys.executable, "-I", "-S", "-c")
    address = fabric.address(target)
    with contextlib.closing(fabric.hosts()[target].start(ProcessSpec((*python, RECEIVER, address)))) as receiver:
        until(lambda: receiver.read(STDOUT))
        return float(on_rank(fabric, source, *python, SENDER, address, str(size_bytes)))


def sent_bytes(fabric: EmulatedFabric, rank: int) -> dict[str, int]:
    lines = on_rank(fabric, rank, "cat", "/proc/net/dev").splitlines()[2:]
    return {line.split()[0].rstrip(":"): int(line.split()[9]) for line in lines}


def assert_takes(seconds: float, size_bytes: int, mbps: float) -> None:
    """Nothing may be ahead of the rate; a busy machine may be late."""
    assert 1 <= seconds / (size_bytes * 8 / (mbps * 1e6)) < 10


@pytest.mark.parametrize("spec", ["ring:4", "uniring:1,4", "switch:4,25"])
def test_busy_links_carry_their_rate(spec: str, up: Up) -> None:
    efficiency = up(spec, tested=True).efficiency
    assert efficiency is not None
    assert 0.6 < efficiency <= 1


def test_neighbours_use_the_link_between_them(up: Up) -> None:
    fabric, size_bytes = up("ring:4"), 2**19
    before = sent_bytes(fabric, 0)
    assert_takes(transfer_s(fabric, 0, 1, size_bytes), size_bytes, 20)
    after = sent_bytes(fabric, 0)
    assert after["to1"] - before["to1"] > size_bytes
    assert after["to3"] == before["to3"]
    assert_takes(transfer_s(fabric, 0, 2, size_bytes), size_bytes, 20)


def test_one_way_links_carry_nothing_but_acknowledgements_back(up: Up) -> None:
    fabric, size_bytes = up("uniring:1,4"), 2**19
    assert_takes(transfer_s(fabric, 0, 1, size_bytes), size_bytes, 20)
    assert 0 < sent_bytes(fabric, 1)["to0"] < size_bytes / 20
    before = sent_bytes(fabric, 1)
    assert_takes(transfer_s(fabric, 1, 0, size_bytes), size_bytes, 20)
    after = sent_bytes(fabric, 1)
    assert after["to2"] - before["to2"] > size_bytes
    assert after["to0"] - before["to0"] < size_bytes / 20


def test_a_rank_has_a_name_an_address_and_the_files_of_its_caller(up: Up) -> None:
    fabric = up("ring:3")
    assert fabric.hostname(2) == f"chorale-{NAME}-2"
    assert on_rank(fabric, 2, "hostname") == fabric.hostname(2)
    shown = on_rank(fabric, 2, "ip", "-o", "-4", "address", "show", "dev", "node")
    assert shown.split()[3] == f"{fabric.address(2)}/32"
    assert set(os.listdir("/sys/class/net")) != {"lo", "node", "node-peer", "to0", "to1"}
    assert set(on_rank(fabric, 2, "ls", "/sys/class/net").split()) == {"lo", "node", "node-peer", "to0", "to1"}
    job = ProcessSpec(("sh", "-c", "pwd; cat given; echo made > here"), files={"given": b"content"})
    with contextlib.closing(fabric.hosts()[0].start(job)) as process:
        folder, content = output(process).split()
        assert content == "content"
        assert process.read("here") == b"made\n"
        assert Path(folder).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="RIGHTS OF ROOT ON FABRICS ARE NOT TESTED: run the tests as root")
def test_root_keeps_its_rights_on_the_files_of_others(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    file.chmod(0o600)
    os.chown(file, 12345, 12345)
    assert on_rank(up("ring:3"), 0, "cat", str(file)) == "content"


def test_fabrics_side_by_side_do_not_mix_and_a_choice_is_not_guessed(up: Up) -> None:
    one, other = up(RARE, name=ONE), up("ring:4", name=OTHER)
    assert {ONE, OTHER} <= {fabric.name for fabric in fabrics()}
    assert one.address(0) == other.address(0)
    assert not one.networks() & other.networks()
    assert find_fabric(one.topology_id) == find_fabric(one.topology_id, ONE) == one
    assert find_fabric(one.topology_id, "nothing") is None
    take_down(one)
    assert find_fabric(one.topology_id) is None
    assert_takes(transfer_s(other, 0, 3, 2**18), 2**18, 20)
    up(RARE, name=ONE)
    up(RARE, name=f"{NAME}-c")
    with pytest.raises(InvalidInput, match=f"{ONE}, {NAME}-c; choose one with --fabric NAME"):
        find_fabric(one.topology_id)
    with pytest.raises(InvalidInput, match=rf"fabric {ONE} has another topology, {RARE}"):
        find_fabric("another", ONE)


def test_a_closed_job_leaves_the_fabric_empty_and_down_ends_what_runs_inside(up: Up) -> None:
    fabric = up("ring:3")
    networks = fabric.networks()
    closed = fabric.hosts()[1].start(ProcessSpec(("sh", "-c", "sleep 1000 & sleep 1000")))
    until(lambda: len(processes_in(networks)) == 3)
    closed.close()
    until(lambda: not processes_in(networks))
    with contextlib.closing(fabric.hosts()[1].start(ProcessSpec(("sleep", "1000")))) as process:
        until(lambda: processes_in(networks))
        take_down(fabric)
        assert process.poll() == -signal.SIGKILL
    assert not processes_in(networks)
    assert not is_alive(fabric.pid)


HALF_WAY = f"""
import time
from chorale.runners.fabric.fabric import NamespaceHolder

holder = NamespaceHolder("{NAME}")
print(holder.pid, holder.run("ip netns add half && stat -L -c 'net:[%i]' /run/netns/half"), flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda cause: cause.name)
def test_half_a_fabric_vanishes_with_its_maker(cause: signal.Signals, up: Up) -> None:
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as maker:
        assert maker.stdout is not None
        pid, network = maker.stdout.readline().split()
        assert is_alive(int(pid))
        assert all(fabric.name != NAME for fabric in fabrics())
        maker.send_signal(cause)
        maker.wait(PATIENCE_S)
    until(lambda: not is_alive(int(pid)))
    assert not processes_in(frozenset({network}))
    take_down(up("ring:3"))


def test_two_cannot_make_one_fabric_at_a_time(up: Up) -> None:
    ring = parse_topology("ring:3")
    with temporary_fabric(ring, Fraction(20), NAME) as (unfinished, _):
        assert find_fabric(ring.id, NAME) is None
        with pytest.raises(InvalidInput, match="another command is bringing up fabric"):
            up("ring:3")
    assert not is_alive(unfinished.pid)
    up("ring:3")
    with pytest.raises(InvalidInput, match="a fabric of this name exists already"):
        up("ring:3")


def test_ups_and_downs_leave_nothing(up: Up) -> None:
    devices, processes = Path("/proc/net/dev").read_text().count(":"), set(psutil.pids())
    descriptors = psutil.Process().num_fds()
    for _ in range(5):
        fabric = up("ring:3")
        networks = fabric.networks()
        take_down(fabric)
        assert not processes_in(networks)
        assert fabric.pid not in dict(detached_states())
    assert Path("/proc/net/dev").read_text().count(":") == devices
    assert psutil.Process().num_fds() == descriptors
    assert not [pid for pid in set(psutil.pids()) - processes if "chorale-fabric" in _arguments(pid)]
    assert not list(Path("/run/netns").glob(f"chorale-{NAME}-*"))


def _arguments(pid: int) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


@pytest.mark.skipif(os.geteuid() != 0, reason="FABRICS WITHOUT USER NAMESPACES ARE NOT TESTED: run the tests as root")
def test_root_does_without_user_namespaces(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    start = holder._start
    monkeypatch.setattr(holder, "_start", lambda name, user: _refused() if user else start(name, user))
    fabric = up("ring:3")
    assert not fabric.in_user_namespace
    assert_takes(transfer_s(fabric, 0, 1, 2**18), 2**18, 20)
    take_down(fabric)
    assert not is_alive(fabric.pid)


def _refused() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(["false"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.wait()
    return process


def test_the_command(
    capsys: pytest.CaptureFixture[str], up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    ring = ("fabric", "up", "ring:3", "--link-mbps", "2", "--name", NAME)
    try:
        first = chorale(capsys, *ring, "--json")
        assert first.code == 0, first.stderr
        assert not first.document["already_up"]
        again = chorale(capsys, *ring, "--json")
        assert again.document["already_up"]
        assert again.document["holder_pid"] == first.document["holder_pid"]
        assert "was already up" in chorale(capsys, *ring).stdout
        for other in (("ring:4", "2"), ("ring:3", "4")):
            refused = chorale(capsys, "fabric", "up", other[0], "--link-mbps", other[1], "--name", NAME)
            assert refused.code == 2
            assert f"{NAME}, which is ring:3 at 2 Mbit/s" in refused.stderr
        shown = chorale(capsys, "fabric", "status", "--json").document["fabrics"]
        (mine,) = [fabric for fabric in shown if fabric["name"] == NAME]
        assert mine["ranks"][1] == {"rank": 1, "address": "10.99.0.2", "namespace": f"chorale-{NAME}-1"}
        assert "ring:3" in chorale(capsys, "fabric", "status").stdout
        assert chorale(capsys, "fabric", "exec", "--name", NAME, 0, "--", "sh", "-c", "exit 3").code == 3
        assert "must be 0 to 2, got 3" in chorale(capsys, "fabric", "exec", "--name", NAME, 3, "true").stderr
    finally:
        down = chorale(capsys, "fabric", "down", NAME, "--json")
    assert down.document == {"down": [NAME]}
    nothing = chorale(capsys, "fabric", "down", NAME)  # others' fabrics that are up are named in the answer
    assert (nothing.code, nothing.stderr) == (0, "")
    assert nothing.stdout.startswith(("nothing was up", f"no fabric {NAME} is up, only "))
    late = chorale(capsys, "fabric", "exec", "--name", NAME, 0, "true")
    assert late.code == 2
    assert "the fabric" in late.stderr
