"""What works on this machine, what is missing, and how to get it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from runners.fabric.holder import Holder
from runners.oneccl.wheels import INSTALL, find_parts
from synth.errors import Unavailable
from tuner.home import Home


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `required`: without it the quickstart campaign cannot run; else it only opens up `needed_for`."""

    name: str
    ok: bool
    found: str
    needed_for: str
    way_out: str
    required: bool = False


def diagnose() -> list[Check]:
    """Look at this machine; takes a second or two and changes nothing but one file written and removed again."""
    groups: tuple[Callable[[], Iterator[Check]], ...] = (
        _python,
        _machine,
        _libraries,
        _extras,
        _tools,
        _gpus,
        _namespaces,
    )
    return [check for group in groups for check in group()]


def _python() -> Iterator[Check]:
    version = platform.python_version()
    ok = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Check("python", ok, version, "everything", "install Python 3.11, then `make setup PYTHON=python3.11`", True)


def _machine() -> Iterator[Check]:
    cores = os.cpu_count() or 1
    yield Check("cores", cores >= 2, str(cores), "steady live measurements", "use a machine with at least 2 cores")
    memory_gib = psutil.virtual_memory().total / 2**30
    way_out = "use a machine with at least 4 GiB, or --set parallel=1"
    yield Check("memory", memory_gib >= 4, f"{memory_gib:.1f} GiB", "a local Ray cluster", way_out)
    linux = sys.platform == "linux"
    yield Check(
        "linux", linux, platform.platform(), "the local runner's watchdogs", "run in a Linux machine or container"
    )
    yield _writable_home()


def _writable_home() -> Check:
    home = Home.from_environment().root
    way_out = "free some space, or set CHORALE_HOME to a folder that can be written"
    probe = home / ".doctor"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"chorale")
        probe.unlink()
    except OSError as error:
        return Check("data folder", False, f"{home}: {error.strerror}", "journals and tracking", way_out, True)
    free_gib = shutil.disk_usage(home).free / 2**30
    return Check(
        "data folder", free_gib > 0.5, f"{home}, {free_gib:.1f} GiB free", "journals and tracking", way_out, True
    )


def _libraries() -> Iterator[Check]:
    purposes = {
        "ray": "campaigns and spread-out synthesis",
        "optuna": "campaigns",
        "mlflow": "tracking",
        "numba": "synthesis",
    }
    for name, purpose in purposes.items():
        yield _installed(name, purpose, "run `make setup`", required=True)


def _extras() -> Iterator[Check]:
    yield _oneccl()
    yield _installed("mpi4py", "the mpi runner", "pip install mpi4py mpich")


def _oneccl() -> Check:
    try:
        found, ok = str(find_parts().root), True
    except Unavailable as missing:
        found, ok = str(missing.value), False
    return Check("oneccl", ok, found, "the oneccl runner", f"run `{INSTALL}`")


def _installed(distribution: str, purpose: str, way_out: str, required: bool = False) -> Check:
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Check(distribution, False, "not installed", purpose, way_out, required)
    return Check(distribution, True, version, purpose, way_out, required)


def _tools() -> Iterator[Check]:
    wanted = {
        "g++": ("building the oneccl runner", "install a C++ compiler, on Debian: apt-get install g++"),
        "make": ("the Makefile targets", "install make"),
        "ip": ("emulated fabrics", "install iproute2"),
        "tc": ("emulated fabrics", "install iproute2"),
    }
    for name, (purpose, way_out) in wanted.items():
        path = shutil.which(name)
        yield Check(name, path is not None, path or "not found", purpose, way_out)


def _gpus() -> Iterator[Check]:
    wanted = {
        "gpus": (("nvidia-smi", "rocm-smi"), "run on a node with NVIDIA or AMD GPUs"),
        "gpu launcher": (("mpirun", "mpiexec", "srun"), "install Open MPI or MPICH, or use a Slurm cluster"),
        "nccl-tests": (("all_reduce_perf",), "build nccl-tests with MPI=1; on the PATH or --set tests_folder=..."),
    }
    for name, (tools, way_out) in wanted.items():
        paths = [path for path in map(shutil.which, tools) if path is not None]
        yield Check(name, bool(paths), ", ".join(paths) or f"no {' or '.join(tools)}", "the msccl runner", way_out)


def _namespaces() -> Iterator[Check]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    yield Check(
        "root", root, "yes" if root else "no", "emulated fabrics without user namespaces", "use sudo for `fabric` only"
    )
    works, found = _try_user_namespace()
    way_out = "allow unprivileged user namespaces in the kernel, or use root"
    yield Check("user namespaces", works, found, "emulated fabrics without root", way_out)
    yield _fabrics()


def _fabrics() -> Check:
    try:
        with contextlib.closing(Holder("doctor")) as holder:
            found, ok, way_out = "user namespaces" if holder.in_user_namespace else "root", True, ""
    except Unavailable as missing:
        found, ok, way_out = str(missing.value), False, missing.way_out
    return Check("fabrics", ok, found, "`chorale fabric`", way_out)


def _try_user_namespace() -> tuple[bool, str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False, "unshare not found"
    try:
        done = subprocess.run([unshare, "-Urn", "true"], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, "work" if done.returncode == 0 else done.stderr.strip() or "refused"
