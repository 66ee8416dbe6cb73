"""The msccl runner from options as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from runners.msccl.options import JobOptions, Launcher
from runners.msccl.runner import MscclRunner
from runners.needs import Needs
from synth.errors import InvalidInput

RAY = "ray"


def msccl_runner(
    runtime: str | None,
    launcher: str,
    hosts: str | None,
    gpus_per_node: int | None,
    tests_folder: str | None,
    library_folder: str | None,
    shared_folder: Path | None,
    buffer_bytes: int | None,
    iterations: int,
    variables: str | None,
) -> MscclRunner:
    """Return the runner. hosts: names with commas; variables: NAME=VALUE with blanks between them.

    The launcher `ray` takes nodes of a Ray cluster instead of `hosts`, and MPICH to start the ranks. Raises
    InvalidInput for what `JobOptions` refuses.
    """
    names = () if hosts is None else tuple(host.strip() for host in hosts.split(","))
    options = JobOptions(
        sizes_bytes=(1,),  # those of each request take its place
        runtime=runtime,
        launcher=known_launcher(launcher, names),
        hosts=names,
        gpus_per_node=gpus_per_node,
        tests_folder=tests_folder,
        library_folder=library_folder,
        buffer_bytes=buffer_bytes,
        iterations=iterations,
        environment=_variables(variables or ""),
    )
    return runner_on(options, shared_folder, Needs(cpus=0) if launcher == RAY else None)


def known_launcher(launcher: str, hosts: Sequence[str]) -> Launcher:
    """Return what starts the ranks where people write `launcher`; InvalidInput for `ray` on `hosts` of their choice."""
    if launcher == RAY and hosts:
        raise InvalidInput("the launcher ray chooses the nodes itself", ",".join(hosts), "leave out hosts")
    return "mpich" if launcher == RAY else cast(Launcher, launcher)  # `JobOptions` checks it


def runner_on(options: JobOptions, shared_folder: Path | None, needs: Needs | None) -> MscclRunner:
    """Return the runner. needs: what each node of the Ray cluster must have that lends itself; None without Ray."""
    cluster = None
    if needs is not None:
        from runners.ray_gpus import RayGpus  # noqa: PLC0415 - Ray is slow to import

        cluster = RayGpus(needs)
    return MscclRunner(options, shared_folder, cluster=cluster)


def _variables(text: str) -> Mapping[str, str]:
    found = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidInput("a variable must be of the form NAME=VALUE", word, "write NCCL_SOCKET_IFNAME=eth0")
        found[name] = value
    return found
