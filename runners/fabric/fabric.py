"""Creates the namespaces of emulated fabrics, finds this user's fabrics, runs processes in them and removes them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import psutil

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.fabric.plan import (
    CONGESTION_CONTROL,
    WIRE_MTU_BYTES,
    FabricPlan,
    device_name,
    namespace_name,
    namespaces_script,
    next_hops,
    nodes_script,
    plan_fabric,
    rank_address,
    window_frames,
    wire_queue_bytes,
)
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch.processes import FABRIC, LocalHost
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import rational_text
from chorale.synth.processors import core_count
from chorale.synth.topology.topology import Topology

_MARK = "chorale-fabric"
_STATE = "run/chorale/fabric.json"
_END_LIMIT_S, _SCRIPT_LIMIT_S = 10.0, 300.0

# The holder ends when the pipe on its standard input closes, unless it has read the line that describes the finished
# fabric. After that it waits forever for a line that nobody writes.
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
# /sys shows the devices of the namespace in which it was mounted, so it is mounted again in the rank's namespace.
_ARRIVE = 'mount -t sysfs sys /sys 2>/dev/null; hostname "$0" && exec "$@"'
_FORMAT = "chorale-fabric/7"


class NamespaceHolder:
    """Keeps a fabric's namespaces alive in a process that ends on `close` or with this process, unless it is detached.

    Raises Unavailable if a tool is missing or this user cannot create namespaces.
    """

    def __init__(self, name: str) -> None:
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            rule = f"a fabric needs the commands {', '.join(_TOOLS)}, and {{}}"
            way_out = "install iproute2 and util-linux, on Debian: apt-get install iproute2 util-linux"
            raise Unavailable(rule, f"{', '.join(missing)} is missing", way_out)
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
        raise Unavailable("network namespaces do not work here: {}", "; ".join(refusals), _WAY_OUT)

    def run(self, script: str) -> str:
        """Run a shell script in the namespaces and return its output. If the script fails, raise Unavailable with the
        output.
        """
        done = _run_inside(self.pid, self.in_user_namespace, script)
        if done.returncode != 0:
            rule = "the kernel does not support what fabrics need: {}"
            raise Unavailable(rule, done.stderr or done.stdout, "use a kernel that has them, with iproute2")
        return done.stdout

    def detach(self, state: str) -> None:
        """Let the holder outlive this process. `state` is a line that describes the fabric to other processes."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{state}\n")
            self._process.stdin.flush()
        if self._answer() != "kept":
            raise Unavailable("the process that holds the fabric has died: {}", self._complaint(), "bring it up again")
        self.is_detached = True
        self._close_pipes()

    def close(self) -> None:
        """End the holder if it was not detached. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            end_process(self.pid)
            self._close_pipes()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().split("\n")
        self._close_pipes()
        return next((line for line in reversed(lines) if line.strip()), "the holder ended")

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def enter_command(pid: int, in_user_namespace: bool, *namespaces: str) -> tuple[str, ...]:
    """Return the words to put before a command to run it in the namespaces of the holder process `pid`.

    namespaces: options of nsenter that select the namespaces
    """
    user = ("--user", "--preserve-credentials") if in_user_namespace else ()
    return ("nsenter", f"--target={pid}", *user, *namespaces)


def _run_inside(pid: int, in_user_namespace: bool, script: str) -> subprocess.CompletedProcess[str]:
    command = [*enter_command(pid, in_user_namespace, "--mount", "--net"), "sh"]
    return subprocess.run(  # noqa: S603 - the script is our own
        command, input=script, capture_output=True, text=True, check=False, timeout=_SCRIPT_LIMIT_S
    )


def detached_states() -> Iterator[tuple[int, str]]:
    """Yield (process id, line that describes the fabric) for each of this user's detached holders."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            arguments = process.cmdline()
            is_holder = arguments[:1] == ["sh"] and arguments[3:4] == [_MARK]
            if is_holder and process.uids().effective == os.geteuid():
                yield process.pid, Path(f"/proc/{process.pid}/root/{_STATE}").read_text()


def end_process(pid: int) -> None:
    """Kill process `pid` if it is still running, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_LIMIT_S
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.005)


def _start(name: str, in_user_namespace: bool) -> subprocess.Popen[str]:
    """Start the process that keeps the namespaces alive. It can outlive this process and never becomes a zombie."""
    user: Sequence[str] = ("--user", "--map-root-user") if in_user_namespace else ()
    command = ["setsid", "--fork", "unshare", *user, "--mount", "--net", "sh", "-c", _HOLD, _MARK, name]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/")  # noqa: S603
    process.wait()
    return process


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


NATIVE = Path(__file__).parent / "native"
LINKS = NativeTarget("chorale-links", (NATIVE / "links.cpp",), ("-pthread",), (ENGINE,))
"""Build target of the program that forwards packets between the namespaces."""

_TUN = Path("/dev/net/tun")
_START_LIMIT_S = 60.0
_BITS_PER_S_A_THREAD = 300_000_000
_WIRE_WAY_OUT = "use root, or the local runner without a fabric: `--link-mbps`"


def require_wire() -> Path:
    """Return the path of the program that forwards packets. Raises Unavailable, with the reason, if it cannot run."""
    require_tun()
    return build_native(LINKS)


def require_tun() -> None:
    """Raise Unavailable if this user may not open /dev/net/tun, which is needed to create links."""
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        raise Unavailable(f"emulated links need the device {_TUN}: {{}}", error.strerror, _WIRE_WAY_OUT) from error


def is_wire_running(pid: int, holder_pid: int) -> bool:
    """Return whether process `pid` is running and forwards packets of the fabric whose holder is `holder_pid`."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        arguments = process.cmdline()
        is_it = Path(arguments[0]).name == LINKS.name and arguments[2:] == [str(holder_pid)] if arguments else False
        return is_it and process.status() != psutil.STATUS_ZOMBIE
    return False


def wire_lines(plan: FabricPlan, folder: str, threads: int) -> Iterator[str]:
    """Yield the input lines of the program that forwards packets. The files of the namespaces are in `folder`."""
    yield f"threads {threads}"
    numbers: dict[tuple[int, int], int] = {}
    arcs = [arc for cable in plan.cables for arc in cable.arcs]
    for node in range(len(plan.routes)):
        yield f"namespace {folder}/{namespace_name(plan.name, node)}"
        for peer in sorted(dst for src, dst in arcs if src == node):
            yield f"device {len(numbers)} {device_name(peer)}"
            numbers[node, peer] = len(numbers)
    directions = [(cable, way_back) for cable in plan.cables for way_back in (0, 1)]
    for index, (cable, way_back) in enumerate(directions):
        acknowledgements_only = not cable.bits_per_s[way_back]
        bits_per_s = cable.bits_per_s[way_back] or cable.bits_per_s[1 - way_back]
        ends = (numbers[cable.arcs[way_back]], numbers[cable.arcs[1 - way_back]])
        words = (*ends, bits_per_s, wire_queue_bytes(bits_per_s), int(acknowledgements_only), index % threads)
        yield " ".join(map(str, ("link", *words)))
    yield "go"


@dataclass(frozen=True, slots=True)
class EmulatedFabric:
    """An emulated network: connected namespaces, one for each rank and switch of a topology.

    bits_per_s: sum of the rates of all links
    pid:        id of the process that keeps the namespaces
    wire_pid:   id of the process that forwards the packets, with `threads` threads
    efficiency: result of the self-test, which keeps all links busy: the time at the links' nominal rates (including
                headers) divided by the measured time; None if the fabric was not tested
    """

    name: str
    spec: str
    topology_id: str
    link_mbps: Fraction
    ranks: int
    switches: int
    bits_per_s: int
    in_user_namespace: bool
    pid: int
    threads: int = 0
    wire_pid: int = 0
    efficiency: float | None = None

    def address(self, rank: int) -> str:
        """Return the IP address at which other ranks reach `rank`."""
        self._require_rank(rank)
        return rank_address(rank)

    def hostname(self, rank: int) -> str:
        """Return the host name of `rank`, which is also the name of its namespace."""
        self._require_rank(rank)
        return namespace_name(self.name, rank)

    def command_prefix(self, rank: int, from_inside: bool = False) -> tuple[str, ...]:
        """Return the words to put before a command to run it on `rank`. The command runs by exec, so no shell remains.

        The command's process has the files and the working folder of the process that starts it, but the rank's network
        and host name. A user who is not root appears as root in the process.

        from_inside: whether the starting process is already on a node of this fabric
        """
        namespace = f"--net=/proc/{self.pid}/root/run/netns/{self.hostname(rank)}"
        # Root must not enter the user namespace, because it would lose its rights to other users' files there.
        enter_user = self.in_user_namespace and not from_inside and os.geteuid() != 0
        enter = enter_command(self.pid, enter_user, namespace)
        return (*enter, "unshare", "--mount", "--uts", "sh", "-c", _ARRIVE, self.hostname(rank))

    def hosts(self) -> tuple[LocalHost, ...]:
        """Return the hosts on which the ranks' processes are started, in rank order."""
        return tuple(LocalHost(self.address(rank), self.command_prefix(rank)) for rank in range(self.ranks))

    def facts(self) -> Facts:
        """Return facts about this fabric that affect measurements; they are part of the environment id."""
        return {
            "network": FABRIC, "fabric": self.name, "link_mbps": float(self.link_mbps), "links": "wire",
            "link_threads": self.threads, "mtu_bytes": WIRE_MTU_BYTES,
            "congestion_control": CONGESTION_CONTROL,
        }  # fmt: skip

    @property
    def is_broken(self) -> bool:
        """Return whether the process that forwards the fabric's packets has ended."""
        return bool(self.wire_pid) and not is_wire_running(self.wire_pid, self.pid)

    def require_links(self) -> None:
        """Raise Unavailable if the process that forwards the fabric's packets has ended."""
        if self.is_broken:
            rule = f"fabric {self.name} has lost the process that forwards its packets: {{}}"
            way_out = f"run `chorale fabric down {self.name}` and bring it up again"
            raise Unavailable(rule, f"process {self.wire_pid} has ended", way_out)

    def networks(self) -> frozenset[str]:
        """Return the ids of all nodes' network namespaces, written as in the link /proc/PID/ns/net: `net:[INODE]`."""
        folder = Path(f"/proc/{self.pid}/root/run/netns")
        nodes = range(self.ranks + self.switches)
        return frozenset(f"net:[{(folder / namespace_name(self.name, node)).stat().st_ino}]" for node in nodes)

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise InvalidInput(f"a rank of fabric {self.name} must be 0 to {self.ranks - 1}", rank, "name another")

    def to_line(self) -> str:
        """Return the fabric as one line of text, which `from_line` parses."""
        return json.dumps({**asdict(self), "link_mbps": rational_text(self.link_mbps), "format": _FORMAT})

    @staticmethod
    def from_line(line: str, pid: int) -> EmulatedFabric | None:
        """Return the fabric in `line` (from `to_line`), held by process `pid`; None if another version wrote `line`."""
        facts = json.loads(line)
        if facts.pop("format") != _FORMAT:
            return None
        return EmulatedFabric(**facts | {"link_mbps": Fraction(facts["link_mbps"]), "pid": pid})


def processes_in(networks: frozenset[str]) -> list[int]:
    """Return the ids of this user's processes that run in any of the network namespaces `networks`."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # processes of other users, and processes that have ended meanwhile
            if os.readlink(f"/proc/{pid}/ns/net") in networks:
                found.append(pid)
    return found


@contextlib.contextmanager
def temporary_fabric(
    topology: Topology, link_mbps: Fraction, name: str
) -> Iterator[tuple[EmulatedFabric, NamespaceHolder]]:
    """Yield a fabric that nobody else can find. Remove it after the `with` block unless its holder is detached."""
    plan = plan_fabric(topology, link_mbps, name)
    with _only_one(name), contextlib.closing(NamespaceHolder(name)) as holder:
        holder.run(namespaces_script(plan))
        threads = min(core_count(), -(-plan.bits_per_s // _BITS_PER_S_A_THREAD)) or 1
        # Create the links between the namespaces.
        enter = enter_command(holder.pid, True) if holder.in_user_namespace and os.geteuid() != 0 else ()
        command = ["setsid", "--fork", *enter, str(require_wire().resolve()), plan.name, str(holder.pid)]
        text = "\n".join([*wire_lines(plan, f"/proc/{holder.pid}/root/run/netns", threads), ""])
        rule = "TUN devices do not work in namespaces: {}"
        try:
            done = subprocess.run(  # noqa: S603 - a program of our own
                command, input=text, capture_output=True, text=True, check=False, cwd="/", timeout=_START_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(rule, error, _WIRE_WAY_OUT) from error
        words = done.stdout.split()
        if words[:1] != ["ready"]:
            raise Unavailable(rule, done.stderr or "no answer", _WIRE_WAY_OUT)
        wire_pid = int(words[1])
        holder.run(nodes_script(plan))
        size = (topology.compute_count, topology.switch_count, plan.bits_per_s)
        network = (name, topology.spec, topology.id, link_mbps)
        try:
            yield EmulatedFabric(*network, *size, holder.in_user_namespace, holder.pid, threads, wire_pid), holder
        finally:
            holder.close()
            if not holder.is_detached:
                _end_wire(wire_pid, holder.pid)


def fabrics() -> list[EmulatedFabric]:
    """Return this user's fabrics that are up, sorted by name."""
    found = (EmulatedFabric.from_line(line, pid) for pid, line in detached_states())
    return sorted((fabric for fabric in found if fabric is not None), key=lambda fabric: fabric.name)


def find_fabric(topology_id: str, name: str | None = None) -> EmulatedFabric | None:
    """Return the topology's running fabric (the one called `name`, if given), or None if there is none.

    Raises InvalidInput if the topology has several fabrics and `name` is None, or if fabric `name` belongs to another
    topology. Raises Unavailable if the process that forwards the fabric's packets has ended.
    """
    fitting = [one for one in fabrics() if (one.topology_id == topology_id if name is None else one.name == name)]
    if len(fitting) > 1:
        names = ", ".join(fabric.name for fabric in fitting)
        raise InvalidInput("several fabrics have this topology: {}", names, "choose one with --fabric NAME")
    for fabric in fitting:
        if fabric.topology_id != topology_id:
            way_out = "leave the name out, or bring the fabric up with the topology of the program"
            raise InvalidInput(f"fabric {name} has another topology, {{}}", fabric.spec, way_out)
        fabric.require_links()
        return fabric
    return None


def take_down(fabric: EmulatedFabric) -> None:
    """Remove `fabric` and kill every process in it. Raises Unavailable if a process cannot be killed."""
    networks = fabric.networks()
    end_process(fabric.pid)
    _end_wire(fabric.wire_pid, fabric.pid)
    deadline = time.monotonic() + _END_LIMIT_S
    while inside := processes_in(networks):
        if time.monotonic() > deadline:
            raise Unavailable("a process of the fabric does not end: {}", f"process {inside[0]}", "kill it")
        for pid in inside:
            end_process(pid)


def _end_wire(pid: int, holder_pid: int) -> None:
    """Kill the process that forwards packets if it still runs; usually it has ended with the holder."""
    if pid and is_wire_running(pid, holder_pid):
        end_process(pid)


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Check that no fabric `name` exists, and keep this user's other commands from creating it during the block.

    The lock is an abstract socket: the kernel releases it when its owner ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0chorale-fabric-{os.geteuid()}-{name}")
        except OSError:
            rule = f"another command is bringing up fabric {name}"
            raise InvalidInput(rule, "", "wait until it has finished") from None
        taken = next((fabric for fabric in fabrics() if fabric.name == name), None)
        if taken is not None:
            found = f"{name}, which is {taken.spec} at {rational_text(taken.link_mbps)} Mbit/s"
            way_out = f"choose another --name, or `chorale fabric down {name}` first"
            raise InvalidInput("a fabric of this name exists already: {}", found, way_out)
        yield


def reroute(fabric: EmulatedFabric, whole: Topology, remaining: Topology, nodes: Sequence[int]) -> None:
    """Route every node's packets over shortest paths of `remaining`, the working part of the topology `whole`.

    nodes: for each node of `remaining`, its number in `whole`; other nodes neither receive nor forward packets

    Routing protocols and subnet managers do the same on real networks. Connections survive, because TCP sends lost
    packets again. Raises Unavailable, with the output of the failed command, if a route cannot be set.
    """
    frames = window_frames(int(fabric.link_mbps * 10**6))
    windows = f"initcwnd {frames} cwnd lock {frames} initrwnd {frames}"
    lines = ["set -e"]
    for node, hops in zip(nodes, next_hops(remaining), strict=True):
        lines.append(f"nsenter --net=/run/netns/{namespace_name(fabric.name, node)} sh -e <<'NODE'")
        source = f" src {rank_address(node)}" if node < whole.compute_count else ""
        for rank, peer in zip(nodes, hops, strict=False):  # ranks come before switches
            if rank != node:
                target = f"{rank_address(rank)}/32 dev {device_name(nodes[peer])}"
                lines.append(f"ip route replace {target}{source} {windows}")
        lines.append("NODE")
    done = _run_inside(fabric.pid, fabric.in_user_namespace, "\n".join([*lines, ""]))
    if done.returncode != 0:
        rule = f"the routes of fabric {fabric.name} must be changed while it is up"
        raise Unavailable(rule, (done.stderr or done.stdout).strip(), "see `chorale fabric status`")
