"""Defines the command `chorale doctor`: check what works on this machine, what is missing, and how to install it."""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
from rich.table import Table
from rich.text import Text

from chorale.job.mpi.preload import preload_library
from chorale.runners.api.registry import RUNNERS
from chorale.runners.engine.build import COMPILERS
from chorale.runners.fabric.fabric import NamespaceHolder, require_tun
from chorale.runners.mpi.launch import find_mpiexec, mpi_launcher
from chorale.runners.oneccl.install import INSTALL, find_parts
from chorale.synth.errors import Unavailable
from chorale.synth.processors import core_count, core_limits, memory_limit
from chorale.tuner.cli.application import AsJson
from chorale.tuner.cli.options import print_result
from chorale.tuner.config.values import PATIENCE_S
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import Result
from chorale.tuner.tracking.mlflow_store import what_is_at


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of `chorale doctor`.

    found:      what the check found, such as a version or the reason for a failure
    needed_for: what does not work if the check fails
    way_out:    how to fix the problem, in words
    required:   whether no campaign can run at all if the check fails
    command:    command that fixes the problem, if there is one
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    way_out: str
    required: bool = False
    command: str = ""


NCCL_TESTS = "git clone https://github.com/NVIDIA/nccl-tests && make -C nccl-tests MPI=1 NCCL_HOME=LIBRARY"
ANOTHER_HOME = "export CHORALE_HOME=$HOME/chorale-data"


def installed(distribution: str, purpose: str, command: str, required: bool = False) -> Check:
    """Check whether a Python distribution is installed; `found` in the result is its version."""
    try:
        ok, found = True, importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        ok, found = False, "not installed"
    return Check(distribution, ok, found, purpose, f"run `{command}`", required, command)


def tool(name: str, tools: tuple[str, ...], purpose: str, way_out: str, command: str) -> Check:
    """Check whether at least one of `tools` is on the PATH."""
    paths = [path for path in map(shutil.which, tools) if path is not None]
    found = ", ".join(paths) or f"no {' or '.join(tools)}"
    return Check(name, bool(paths), found, purpose, way_out, command=command)


def tried(name: str, attempt: Callable[[], str], purpose: str, way_out: str = "", command: str = "") -> Check:
    """Check whether `attempt` succeeds: the function returns a text about what it found, or raises Unavailable."""
    try:
        return Check(name, True, attempt(), purpose, way_out, command=command)
    except Unavailable as missing:
        return Check(name, False, str(missing.value), purpose, way_out or missing.way_out, command=command)


def machine_checks() -> Iterator[Check]:
    """Yield all checks of this machine. Some of them start processes, which end within seconds."""
    command = "make setup PYTHON=python3.11"
    supported = (3, 11) <= sys.version_info[:2] < (3, 14)
    version, way_out = platform.python_version(), f"install Python 3.11, then `{command}`"
    yield Check("python", supported, version, "everything", way_out, True, command)
    cores, limits = core_count(), core_limits()
    way_out = f"{limits}: give this process more" if limits else "use a machine with at least 2 cores"
    yield Check("cores", cores >= 2, str(cores), "steady live measurements", way_out)
    memory_gib = min(psutil.virtual_memory().total, memory_limit()) / 2**30
    way_out = "use a machine with at least 4 GiB, or --set parallel=1"
    yield Check("memory", memory_gib >= 4, f"{memory_gib:.1f} GiB", "a local Ray cluster", way_out)
    is_linux, way_out = sys.platform == "linux", "run in a Linux machine or container"
    yield Check("linux", is_linux, platform.platform(), "the local runner's watchdogs", way_out)
    home = Home.from_environment().root
    folder = next(path for path in (home, *home.parents) if path.exists())
    reason = None if folder.is_dir() else "not a folder"
    if reason is None and not os.access(folder, os.W_OK | os.X_OK):
        reason = "Permission denied"
    if reason is None and os.statvfs(folder).f_flag & os.ST_RDONLY:
        reason = "Read-only file system"
    free_gib = shutil.disk_usage(folder).free / 2**30 if reason is None else 0.0
    found = f"{home}, {free_gib:.1f} GiB free" if reason is None else f"{folder}: {reason}"
    way_out = "free some space, or set CHORALE_HOME to a folder that can be written"
    yield Check("data folder", free_gib > 0.5, found, "journals and tracking", way_out, True, ANOTHER_HOME)
    for name, purpose in (
        ("ray", "campaigns and distributed synthesis"),
        ("optuna", "campaigns"),
        ("mlflow", "tracking"),
    ):
        yield installed(name, purpose, "pip install 'chorale-collectives[tune]'", required=True)
    yield installed("matplotlib", "pictures", "pip install 'chorale-collectives[plot]'")
    yield tried("oneccl", lambda: str(find_parts().root), "the oneccl runner", f"run `{INSTALL}`", INSTALL)
    yield installed("mpi4py", "the mpi runner", "pip install mpi4py mpich")
    command = "pip install mpich"
    yield tried("mpiexec", _mpi, "the mpi runner", f"run `{command}`", command)
    compilers = (os.environ["CXX"],) if "CXX" in os.environ else COMPILERS
    way_out = "install a C++ compiler, on Debian: apt-get install g++"
    yield tool("g++", compilers, "emulated fabrics, the oneccl runner", way_out, "apt-get install g++")
    for name in ("ip", "tc"):
        yield tool(name, (name,), "emulated fabrics", "install iproute2", "apt-get install iproute2")
    runner, elsewhere = "the nccl and msccl runners", "run on a node with NVIDIA or AMD GPUs"
    yield tool("gpus", ("nvidia-smi", "rocm-smi"), runner, elsewhere, "ssh GPU-NODE chorale doctor")
    way_out = "install Open MPI or MPICH, or use a Slurm cluster"
    yield tool("gpu launcher", ("mpirun", "mpiexec", "srun"), runner, way_out, "apt-get install openmpi-bin")
    way_out = "build nccl-tests with MPI=1, on the PATH"
    yield tool("nccl-tests", ("all_reduce_perf",), "jobs of `chorale export`", way_out, NCCL_TESTS)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    purpose, way_out = "emulated fabrics without user namespaces", "use sudo for `fabric` only"
    yield Check("root", is_root, "yes" if is_root else "no", purpose, way_out)
    way_out = "allow unprivileged user namespaces in the kernel, or use root"
    yield tried("user namespaces", _user_namespace, "emulated fabrics without root", way_out)
    command = "" if is_root else "sudo chorale fabric up ring:4 --link-mbps 50"
    yield tried("fabrics", _namespaces, "`chorale fabric`", command=command)
    purpose = "`chorale fabric` with links that never exceed their rate"
    yield tried("honest links", lambda: require_tun() or "/dev/net/tun", purpose)  # type: ignore[func-returns-value]


def _mpi() -> str:
    path = find_mpiexec()
    return f"{mpi_launcher(path)}, {path}"


def _user_namespace() -> str:
    unshare, refused = shutil.which("unshare"), "refused"
    if unshare is None:
        refused = "unshare not found"
    else:
        try:
            done = subprocess.run([unshare, "-Urn", "true"], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
            if done.returncode == 0:
                return "work"
            refused = done.stderr.strip() or refused
        except (OSError, subprocess.TimeoutExpired) as error:
            refused = str(error)
    raise Unavailable("user namespaces do not work: {}", refused, "")


def _namespaces() -> str:
    with closing(NamespaceHolder("doctor")) as holder:
        return "user namespaces" if holder.in_user_namespace else "root"


def service_checks(home: Home) -> Iterator[Check]:
    """Yield the checks of the Ray cluster and the MLflow store. Each check waits at most `PATIENCE_S` for a reply."""
    address, command = os.environ.get("RAY_ADDRESS", ""), "unset RAY_ADDRESS"
    way_out = f"start it with `ray start --head`, or `{command}` to run campaigns in processes on this machine"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    ok, found = True, f"RAY_ADDRESS={address}" if address else "none named: campaigns use processes on this machine"
    if port.isdigit():
        try:
            with closing(socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S)):
                ok = True
        except OSError:
            ok = False
        found = f"{address} {'answers' if ok else 'does not answer'}"
    yield Check("ray cluster", ok, found, "campaigns on a cluster", way_out, True, command)
    command = "unset MLFLOW_TRACKING_URI"
    then = f"`{command}` to track runs in the data folder; otherwise `chorale tune --resume` uploads them later"
    store = tried("mlflow store", lambda: what_is_at(home.mlflow_uri), "tracking")
    way_out = f"{store.way_out}; {then}" if store.way_out else then
    yield replace(store, way_out=way_out, command="" if store.ok else command)


PARTS: Mapping[str, tuple[str, ...]] = {
    **{name: runner.preconditions for name, runner in RUNNERS.items() if runner.preconditions},
    "fabric": ("linux", "ip", "tc", "fabrics"),
    "ray": ("ray", "memory", "ray cluster"),
    "mlflow": ("mlflow", "data folder", "mlflow store"),
    "service": ("ray", "fastapi", "data folder"),
}
"""Runner or service -> names of its necessary checks, in the order in which users should fix failures."""


def doctor(as_json: AsJson = False) -> None:
    """Check what works on this machine and what is missing; exit 3 if no campaign can run."""
    service = installed("fastapi", "the service", "pip install 'chorale-collectives[serve]'")
    checks = [*machine_checks(), service, *service_checks(Home.from_environment())]
    named = {check.name: check for check in checks}
    parts: list[dict[str, Any]] = []
    shown = Table("part", "found", "missing", "run")
    for name, needs in PARTS.items():
        missing = [named[need] for need in needs if not named[need].ok]
        deciding = missing[0] if missing else named[needs[-1]]
        found, mend = f"{deciding.name}: {deciding.found}", (deciding.command or deciding.way_out) if missing else ""
        names = [check.name for check in missing]
        parts.append({"name": name, "usable": not missing, "found": found, "missing": names, "mend": mend})
        word = ("not yet", "yellow") if missing else ("usable", "green")
        shown.add_row(Text.assemble(word, f" {name}"), found, ", ".join(names), mend)
    ready = all(check.ok for check in checks if check.required)
    shown.title = "Ready to run campaigns" if ready else "Campaigns cannot run here yet"
    document: dict[str, Any] = {"ready": ready, "parts": parts, "checks": [asdict(check) for check in checks]}
    if as_json:  # path of the library for MPI programs, which may have to be compiled first
        try:
            document |= {"mpi_preload": str(preload_library()), "mpi_preload_reason": None}
        except Unavailable as error:
            document |= {"mpi_preload": None, "mpi_preload_reason": str(error)}
    table = Table("finding", "found", "needed for", "to get it")
    for check in checks:
        colour = "green" if check.ok else "red" if check.required else "yellow"
        state = Text.assemble(("ok" if check.ok else "missing", colour), f" {check.name}")
        table.add_row(state, check.found, check.needed_for, "" if check.ok else check.way_out)
    print_result(Result(document, table, shown, exit_code=0 if ready else Unavailable.exit_code), as_json)
