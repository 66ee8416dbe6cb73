"""The msccl runner from options as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from runners.msccl.options import JobOptions, Launcher
from runners.msccl.runner import MscclRunner
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
    cluster = None
    if launcher == RAY:
        if hosts is not None:
            raise InvalidInput("the launcher ray chooses the nodes itself", hosts, "leave out hosts")
        from runners.ray_gpus import RayGpus  # noqa: PLC0415 - Ray is slow to import

        cluster, launcher = RayGpus(), "mpich"
    options = JobOptions(
        sizes_bytes=(1,),  # those of each request take its place
        runtime=runtime,
        launcher=cast(Launcher, launcher),  # checked there
        hosts=() if hosts is None else tuple(host.strip() for host in hosts.split(",")),
        gpus_per_node=gpus_per_node,
        tests_folder=tests_folder,
        library_folder=library_folder,
        buffer_bytes=buffer_bytes,
        iterations=iterations,
        environment=_variables(variables or ""),
    )
    return MscclRunner(options, shared_folder, cluster=cluster)


def _variables(text: str) -> dict[str, str]:
    found = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidInput("a variable must be of the form NAME=VALUE", word, "write NCCL_SOCKET_IFNAME=eth0")
        found[name] = value
    return found
