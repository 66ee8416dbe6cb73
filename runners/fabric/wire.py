"""The process that carries the packets of a fabric at their rates: what it is told, how it starts, whether it runs."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from chorale.runners.engine.build import NativeTarget, build_native, native_home
from chorale.runners.fabric.link_shape import wire_queue_bytes
from chorale.runners.fabric.plan import Cable, FabricPlan, device_name, namespace_name
from chorale.synth.errors import Unavailable

LINKS = NativeTarget("chorale-links", (Path(__file__).parent / "native" / "links.cpp",), flags=("-pthread",))
"""The program of the process."""

_TUN = Path("/dev/net/tun")
_START_LIMIT_S = 60.0
_BITS_PER_S_A_THREAD = 300_000_000
_WAY_OUT = "use root, or --links bucket, which is dishonest for small messages"


def require_wire() -> Path:
    """Return the program of the process; raises Unavailable with the reason where links cannot be a process."""
    require_tun()
    return build_native(LINKS, native_home())


def require_tun() -> None:
    """Raise Unavailable if this user may not open the device from which links are made."""
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        raise Unavailable(f"honest links need the device {_TUN}", error.strerror, _WAY_OUT) from error


def thread_count(bits_per_s: int, cores: int) -> int:
    """Return how many threads carry `bits_per_s`: one as long as it can, then up to one for each core."""
    return min(cores, -(-bits_per_s // _BITS_PER_S_A_THREAD)) or 1


def start_wire(
    program: Path, plan: FabricPlan, holder_pid: int, threads: int, seed: int, enter: Sequence[str] = ()
) -> int:
    """Start the process for a fabric whose namespaces are there and return its id once all devices are.

    enter: command that starts it where it has rights on the namespaces

    It is nobody's child and ends with the holder. Raises Unavailable with what it said if it cannot start.
    """
    command = ["setsid", "--fork", *enter, str(program.resolve()), plan.name, str(holder_pid)]
    text = "\n".join([*wire_lines(plan, f"/proc/{holder_pid}/root/run/netns", threads, seed), ""])
    rule = "honest links need TUN devices in namespaces"
    try:
        done = subprocess.run(  # noqa: S603 - a program of our own
            command, input=text, capture_output=True, text=True, check=False, cwd="/", timeout=_START_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(rule, error, _WAY_OUT) from error
    words = done.stdout.split()
    if words[:1] != ["ready"]:
        raise Unavailable(rule, done.stderr or "no answer", _WAY_OUT)
    return int(words[1])


def is_wire_running(pid: int, holder_pid: int) -> bool:
    """Return whether process `pid` carries the packets of the fabric of that holder."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        arguments = process.cmdline()
        is_it = Path(arguments[0]).name == LINKS.name and arguments[2:] == [str(holder_pid)] if arguments else False
        return is_it and process.status() != psutil.STATUS_ZOMBIE
    return False


def wire_lines(plan: FabricPlan, folder: str, threads: int, seed: int) -> Iterator[str]:
    """Yield the lines that tell the process what to make; `folder` is where the namespaces are."""
    yield f"threads {threads}"
    numbers: dict[tuple[int, int], int] = {}
    lossless = {arc: not loss for cable in plan.cables for arc, loss in zip(cable.arcs, cable.loss, strict=True)}
    for node in range(len(plan.routes)):
        yield f"namespace {folder}/{namespace_name(plan.name, node)}"
        for peer in sorted(dst for src, dst in lossless if src == node):
            # Where packets are lost, each is a frame: what is lost together would be lost too often or too rarely.
            yield f"device {len(numbers)} {device_name(peer)} {int(lossless[node, peer])}"
            numbers[node, peer] = len(numbers)
    draw = random.Random(seed)  # noqa: S311 - seeds of emulated loss
    directions = [(cable, way_back) for cable in plan.cables for way_back in (0, 1)]
    for index, (cable, way_back) in enumerate(directions):
        ends = f"{numbers[cable.arcs[way_back]]} {numbers[cable.arcs[1 - way_back]]}"
        yield f"link {ends} {_link_numbers(cable, way_back)} {index % threads} {draw.getrandbits(63)}"
    yield "go"


def _link_numbers(cable: Cable, way_back: int) -> str:
    latency_us, loss = cable.latency_us[way_back], cable.loss[way_back]
    acknowledgements_only = not cable.bits_per_s[way_back]
    bits_per_s = cable.bits_per_s[way_back] or cable.bits_per_s[1 - way_back]
    numbers = (bits_per_s, int(latency_us * 1000), int(loss * 2**32), wire_queue_bytes(bits_per_s, latency_us))
    return " ".join(map(str, (*numbers, int(acknowledgements_only))))


def processor_s(pid: int) -> float:
    """Return the seconds of processors that all threads of process `pid` have used."""
    used = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9
