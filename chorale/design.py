"""From a network to a verified schedule and its program, with defaults that suit most users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import networkx as nx

from chorale.products import CheckedProgram, DesignedSchedule, NetworkTopology, PredictedTimes
from chorale.runners.api.units import parse_sizes
from chorale.synth.build.build import build_program
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import verified_schedule
from chorale.synth.build.schedules import verify_schedule as _verify
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import method_named
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.simulation.simulate import as_fidelity
from chorale.synth.simulation.simulate import simulate as _simulate
from chorale.synth.targets.registry import is_in_place_by_default, target_named
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology

Network: TypeAlias = "str | Topology | nx.Graph[Any]"
"""A topology spec such as `torus:4x4` or `file:fabric.json`, a topology, or a NetworkX graph."""

Sizes = str | int | Sequence[int]
"""Buffer sizes in bytes: `1MiB`, `64KiB,1M`, `4KiB:1GiB:x4`, a number or several."""


def topology(network: Network) -> NetworkTopology:
    """Return the checked topology of a spec, a NetworkX graph or a topology; InvalidInput where it is none.

    >>> topology("hypercube:3").compute_count
    8
    """
    if isinstance(network, Topology):
        return NetworkTopology.of(network)
    return NetworkTopology.of(load_topology(network) if isinstance(network, str) else from_networkx(network))


def synthesize(
    network: Network,
    collective: str = "allgather",
    method: str = "auto",
    *,
    root: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **parameters: Any,
) -> DesignedSchedule:
    """Return the verified schedule of `collective` on `network`.

    Args:
        network: A topology spec, a topology or a NetworkX graph.
        collective: allgather, reduce_scatter, allreduce, broadcast, reduce or alltoall.
        method: A name of `chorale synth --help`; `auto` takes the schedule of lowest proven cost.
        root: The root rank of broadcast and reduce.
        executor: Where to compute; this process unless another is given.
        progress: Called with what is done and what there is to do.
        **parameters: Fields of `chorale.synth.Options`, such as k, chunks, objective, seed or size_bytes.

    Raises:
        InvalidInput: What was given does not fit together.

    >>> verified = synthesize("torus:4x4", method="bfb")
    >>> verified.cost.steps, str(verified.cost.bandwidth_factor)
    (4, '15/16')
    """
    try:
        options = Options(**parameters)
    except TypeError:
        value = ", ".join(sorted(set(parameters) - set(Options.__dataclass_fields__)))
        way_out = f"choose from {', '.join(Options.__dataclass_fields__)}"
        raise InvalidInput("a parameter must be an option of methods", value, way_out) from None
    name = method_named(method).name
    request = ScheduleRequest(topology(network), parse_collective(collective, root), name, options)
    return DesignedSchedule.of(verified_schedule(request, executor or SerialExecutor(), progress))


def verify(schedule: AnySchedule | str, size_bytes: int | None = None) -> DesignedSchedule:
    """Return the verified form of a schedule.

    Args:
        schedule: A schedule, or the name of its file.
        size_bytes: The cost holds the exact time at that size, if it is given.

    Raises:
        CheckFailed: The schedule is wrong; it names the first fault.

    >>> verify(synthesize("ring:4", method="ring").schedule).method
    'ring'
    """
    return DesignedSchedule.of(_verify(load_schedule(schedule) if isinstance(schedule, str) else schedule, size_bytes))


def lower(schedule: VerifiedSchedule | str, target: str = "msccl-xml", **options: Any) -> CheckedProgram:
    """Return the checked program of a schedule: `.program`, and `.text` as runtimes read it.

    Args:
        schedule: A verified schedule, or the name of a schedule file, which is verified.
        target: A dialect of `chorale lower --help`, such as msccl-xml, msccl-executor-xml, mscclpp-json or oneccl-xml.
        **options: Fields of `chorale.synth.LoweringOptions`, such as channels, instances or protocol.

    Raises:
        InvalidInput: An option does not exist or does not fit.

    >>> lower(synthesize("ring:4", "allreduce", method="ring"), "msccl-xml").text[:5]
    '<algo'
    """
    verified = verify(schedule) if isinstance(schedule, str) else schedule
    name = target_named(target).name
    options.setdefault("in_place", is_in_place_by_default(verified.schedule.collective, name))
    try:
        lowering = LoweringOptions(name, **options)
    except TypeError:
        value = ", ".join(sorted(set(options) - set(LoweringOptions.__dataclass_fields__)))
        way_out = f"choose from {', '.join(LoweringOptions.__dataclass_fields__)}"
        raise InvalidInput("a lowering option must exist", value, way_out) from None
    return CheckedProgram.of(build_program(verified, lowering), verified.schedule.topology)


def simulate(
    schedule: VerifiedSchedule | str,
    sizes: Sizes = "1MiB",
    *,
    model: str = "step",
    alpha_us: float | str = 0,
    link_latency_us: float | str = "0.1",
    hop_us: float | str = "0.3",
    link_gbps: float | str | None = None,
) -> PredictedTimes:
    """Return the predicted seconds per size in bytes.

    Args:
        schedule: A verified schedule, or the name of a schedule file, which is verified.
        sizes: Buffer sizes in bytes, as text, a number or several.
        model: `step`, with barriers between steps, or `flow`, with messages that share links fairly.
        alpha_us: Microseconds that each step takes besides.
        link_latency_us: Microseconds that a link takes besides its bytes.
        hop_us: Microseconds that each node on the way takes.
        link_gbps: Rate of a link of bandwidth 1 in Gbit/s; needed where the topology counts links.

    >>> times_s = simulate(synthesize("ring:4", method="ring"), "1MiB", link_gbps=100)
    >>> round(times_s[2**20] * 1e6, 2)
    64.11
    """
    verified = verify(schedule) if isinstance(schedule, str) else schedule
    sizes_bytes = size_list(sizes)
    network = NetworkModel.of(alpha_us, link_latency_us, hop_us, link_gbps)
    network.unit_bytes_per_s(verified.schedule.topology)
    seconds = _simulate(traffic_of(verified.schedule), network, sizes_bytes, as_fidelity(model))
    schedule_of = verified.schedule
    title = f"{schedule_of.method} {schedule_of.collective} on {schedule_of.topology.spec}"
    return PredictedTimes(dict(zip(sizes_bytes, seconds, strict=True)), title)


def size_list(sizes: Sizes) -> tuple[int, ...]:
    """Return sizes in bytes; InvalidInput for text that is no size."""
    if isinstance(sizes, str):
        return tuple(parse_sizes(sizes))
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)
