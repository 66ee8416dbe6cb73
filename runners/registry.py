"""The runners by name: how to make each from its options, and what those that are not built yet stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runners.api import Runner
from runners.option_text import option_value
from synth.errors import InvalidInput
from synth.identity import parse_rational


def _local(link_mbps: float | None = None, home: Path | None = None, probe: bool = True) -> Runner:
    from runners.local.runner import LocalRunner  # noqa: PLC0415 - only who runs something pays for it

    return LocalRunner(link_mbps, home=home, probe=probe)


def _simulated(
    link_mbps: float | str | None = None,
    alpha_us: float | str = 0,
    link_latency_us: float | str = 0,
    hop_us: float | str = 0,
    buffer_bytes: int | None = None,
) -> Runner:
    from runners.simulated import SimulatedRunner  # noqa: PLC0415
    from synth.simulation.network_model import NetworkModel  # noqa: PLC0415

    rate = None if link_mbps is None else parse_rational(link_mbps, "the link rate (Mbit/s)") / 1000
    return SimulatedRunner(NetworkModel.of(alpha_us, link_latency_us, hop_us, rate), buffer_bytes)


def _recorded(generator: str = "ForestColl", buffer_bytes: int | None = None, schedule: str | None = None) -> Runner:
    from runners.recorded.runner import RecordedRunner  # noqa: PLC0415

    return RecordedRunner(None, generator, buffer_bytes, schedule)


def _oneccl(fabric: str | None = None, where: str | None = None, home: Path | None = None) -> Runner:
    from runners.oneccl.runner import OneCclRunner  # noqa: PLC0415

    return OneCclRunner(fabric, where, home=home)


def _mpi(fabric: str | None = None, where: str | None = None, hosts: str | None = None) -> Runner:
    from runners.mpi.runner import MpiRunner  # noqa: PLC0415

    return MpiRunner(fabric, where, hosts)


def _msccl(
    runtime: str | None = None,
    launcher: str = "openmpi",
    hosts: str | None = None,
    gpus_per_node: int | None = None,
    tests_folder: str | None = None,
    library_folder: str | None = None,
    shared_folder: Path | None = None,
    buffer_bytes: int | None = None,
    iterations: int = 50,
    variables: str | None = None,
) -> Runner:
    from runners.msccl.choice import msccl_runner  # noqa: PLC0415

    where = (hosts, gpus_per_node, tests_folder, library_folder, shared_folder)
    return msccl_runner(runtime, launcher, *where, buffer_bytes, iterations, variables)


RUNNERS: Mapping[str, Callable[..., Runner]] = {
    "local": _local,
    "simulated": _simulated,
    "recorded": _recorded,
    "oneccl": _oneccl,
    "mpi": _mpi,
    "msccl": _msccl,
}


def create_runner(name: str, options: Mapping[str, Any] | None = None) -> Runner:
    """Return a new runner; the caller closes it.

    `options` are the keyword arguments of the runner's factory above, as values or as text: `link_mbps`, `home` and
    `probe` for local; `link_mbps`, `alpha_us`, `link_latency_us`, `hop_us` and `buffer_bytes` for simulated;
    `generator`, `buffer_bytes` and `schedule` for recorded; `fabric`, `where` and `home` for oneccl; `fabric`, `where`
    and `hosts` for mpi; for msccl see docs/msccl.md. InvalidInput for an unknown name or option.
    """
    way_out = f"choose from {', '.join(RUNNERS)}"
    if name not in RUNNERS:
        raise InvalidInput("a runner must be one that is known", name, way_out)
    factory, given = RUNNERS[name], dict(options or {})
    known = inspect.signature(factory).parameters
    unknown = [option for option in given if option not in known]
    if unknown:
        raise InvalidInput(f"an option of the {name} runner must be one it has", unknown[0], f"use {', '.join(known)}")
    return factory(**{option: option_value(known[option], value) for option, value in given.items()})
