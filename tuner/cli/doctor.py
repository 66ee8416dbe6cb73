"""`chorale doctor`: what works on this machine, what is missing, how to get it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import psutil
from rich.table import Table
from rich.text import Text

from chorale.job.mpi.preload import preload_library
from chorale.runners.api.registry import RUNNERS
from chorale.runners.engine.build import COMPILERS
from chorale.runners.fabric.fabric import NamespaceHolder, require_tun
from chorale.runners.mpi.launch import find_mpiexec, mpi_version
from chorale.runners.oneccl.install import INSTALL, find_parts
from chorale.synth.errors import Unavailable
from chorale.synth.redaction import redacted, split_credentials
from chorale.tuner.cli.application import AsJson
from chorale.tuner.cli.output import print_result
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import Result


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    required: without it the quickstart campaign cannot run; else only `needed_for` cannot be used
    way_out:  how to repair it, in words
    command:  what to type, where one command repairs it
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    way_out: str
    required: bool = False
    command: str = ""


def installed(distribution: str, purpose: str, command: str, required: bool = False) -> Check:
    """Return the check whether a distribution of Python is installed, and which version."""
    way_out = f"run `{command}`"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Check(distribution, False, "not installed", purpose, way_out, required, command)
    return Check(distribution, True, version, purpose, way_out, required, command)


NCCL_TESTS = "git clone https://github.com/NVIDIA/nccl-tests && make -C nccl-tests MPI=1 NCCL_HOME=LIBRARY"
ANOTHER_HOME = "export CHORALE_HOME=$HOME/chorale-data"


def machine_checks() -> list[Check]:
    """Return all checks of this machine; one file is written and removed again."""
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
    command = "make setup PYTHON=python3.11"
    yield Check("python", ok, version, "everything", f"install Python 3.11, then `{command}`", True, command)


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
    folder = next(path for path in (home, *home.parents) if path.exists())
    reason = None if folder.is_dir() else "not a folder"
    if reason is None and not os.access(folder, os.W_OK | os.X_OK):
        reason = "Permission denied"
    if reason is None and os.statvfs(folder).f_flag & os.ST_RDONLY:
        reason = "Read-only file system"
    if reason is not None:
        return Check("data folder", False, f"{folder}: {reason}", "journals and tracking", way_out, True, ANOTHER_HOME)
    free_gib = shutil.disk_usage(folder).free / 2**30
    found = f"{home}, {free_gib:.1f} GiB free"
    return Check("data folder", free_gib > 0.5, found, "journals and tracking", way_out, True, ANOTHER_HOME)


def _libraries() -> Iterator[Check]:
    purposes = {
        "ray": "campaigns and spread-out synthesis",
        "optuna": "campaigns",
        "mlflow": "tracking",
    }
    for name, purpose in purposes.items():
        yield installed(name, purpose, "pip install 'chorale-collectives[tune]'", required=True)


def _extras() -> Iterator[Check]:
    yield installed("matplotlib", "pictures", "pip install 'chorale-collectives[plot]'")
    try:
        found, ok = str(find_parts().root), True
    except Unavailable as missing:
        found, ok = str(missing.value), False
    yield Check("oneccl", ok, found, "the oneccl runner", f"run `{INSTALL}`", command=INSTALL)
    yield installed("mpi4py", "the mpi runner", "pip install mpi4py mpich")
    yield _mpiexec()


def _mpiexec() -> Check:
    try:
        path = find_mpiexec()
        found, ok = f"{mpi_version(path)}, {path}", True
    except Unavailable as missing:
        found, ok = str(missing.value), False
    return Check("mpiexec", ok, found, "the mpi runner", "run `pip install mpich`", command="pip install mpich")


def _tools() -> Iterator[Check]:
    compilers = (os.environ["CXX"],) if "CXX" in os.environ else COMPILERS
    way_out = "install a C++ compiler, on Debian: apt-get install g++"
    yield _tool("g++", compilers, "emulated fabrics, the oneccl runner", way_out, "apt-get install g++")
    yield _tool("make", ("make",), "the Makefile targets", "install make", "apt-get install make")
    for name in ("ip", "tc"):
        yield _tool(name, (name,), "emulated fabrics", "install iproute2", "apt-get install iproute2")


def _gpus() -> Iterator[Check]:
    runner, elsewhere = "the msccl runner", "run on a node with NVIDIA or AMD GPUs"
    yield _tool("gpus", ("nvidia-smi", "rocm-smi"), runner, elsewhere, "ssh GPU-NODE chorale doctor")
    way_out = "install Open MPI or MPICH, or use a Slurm cluster"
    yield _tool("gpu launcher", ("mpirun", "mpiexec", "srun"), runner, way_out, "apt-get install openmpi-bin")
    way_out = "build nccl-tests with MPI=1; on the PATH or in the campaign's `tests_folder`"
    yield _tool("nccl-tests", ("all_reduce_perf",), runner, way_out, NCCL_TESTS)


def _tool(name: str, tools: tuple[str, ...], purpose: str, way_out: str, command: str) -> Check:
    """Return the check whether one of `tools` is on the PATH."""
    paths = [path for path in map(shutil.which, tools) if path is not None]
    found = ", ".join(paths) or f"no {' or '.join(tools)}"
    return Check(name, bool(paths), found, purpose, way_out, command=command)


def _namespaces() -> Iterator[Check]:
    root = _is_root()
    yield Check(
        "root", root, "yes" if root else "no", "emulated fabrics without user namespaces", "use sudo for `fabric` only"
    )
    works, found = _try_user_namespace()
    way_out = "allow unprivileged user namespaces in the kernel, or use root"
    yield Check("user namespaces", works, found, "emulated fabrics without root", way_out)
    yield _fabrics()
    yield _honest_links()


def _fabrics() -> Check:
    try:
        with contextlib.closing(NamespaceHolder("doctor")) as holder:
            found, ok, way_out = "user namespaces" if holder.in_user_namespace else "root", True, ""
    except Unavailable as missing:
        found, ok, way_out = str(missing.value), False, missing.way_out
    command = "" if _is_root() else "sudo chorale fabric up ring:4 --link-mbps 50"
    return Check("fabrics", ok, found, "`chorale fabric`", way_out, command=command)


def _honest_links() -> Check:
    try:
        require_tun()
        found, ok, way_out = "/dev/net/tun", True, ""
    except Unavailable as missing:
        found, ok, way_out = str(missing.value), False, missing.way_out
    return Check("honest links", ok, found, "`chorale fabric` with links that are never too fast", way_out)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _try_user_namespace() -> tuple[bool, str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False, "unshare not found"
    try:
        done = subprocess.run([unshare, "-Urn", "true"], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, "work" if done.returncode == 0 else done.stderr.strip() or "refused"


PATIENCE_S = 1.5
SERVICE_PORT = 8600


def service_checks(home: Home) -> Iterator[Check]:
    """Yield a check of each service; each waits `PATIENCE_S` at most for an answer."""
    yield _ray_cluster(os.environ.get("RAY_ADDRESS", ""))
    yield _mlflow(home.mlflow_uri)
    command = f"chorale serve --port {SERVICE_PORT + 1}"
    free = not _answers("127.0.0.1", SERVICE_PORT)
    ours = not free and _is_the_service(f"http://127.0.0.1:{SERVICE_PORT}/openapi.json")
    what = "is free" if free else "is where the service answers" if ours else "is taken by something else"
    found = f"port {SERVICE_PORT} {what}"
    yield Check("service port", free or ours, found, "the service", f"run `{command}`", command=command)


def _ray_cluster(address: str) -> Check:
    purpose, command = "campaigns on a cluster", "unset RAY_ADDRESS"
    way_out = f"start it with `ray start --head`, or `{command}` and campaigns work in processes here"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        found = "none named: campaigns work in processes here" if not address else f"RAY_ADDRESS={address}"
        return Check("ray cluster", True, found, purpose, way_out, True, command)
    ok = _answers(host.strip("[]"), int(port))
    found = f"{address} {'answers' if ok else 'does not answer'}"
    return Check("ray cluster", ok, found, purpose, way_out, True, command)


def _mlflow(uri: str) -> Check:
    purpose, command = "tracking", "unset MLFLOW_TRACKING_URI"
    way_out = f"start that server, or `{command}` and runs are kept in the data folder; campaigns go on without it"
    if not uri.startswith(("http://", "https://")):
        return Check("mlflow store", True, f"a database: {redacted(uri)}", purpose, way_out)
    uri, _, _ = split_credentials(uri)
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE_S) as answer:  # noqa: S310 - http above
            return Check("mlflow store", True, f"{uri} answers {answer.status}", purpose, way_out, command=command)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Check("mlflow store", False, f"{uri}: {reason}", purpose, way_out, command=command)


def _is_the_service(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310 - of this machine
            return b"chorale" in answer.read(4096).lower()
    except (OSError, ValueError):
        return False


def _answers(host: str, port: int) -> bool:
    try:
        with closing(socket.create_connection((host, port), timeout=PATIENCE_S)):
            return True
    except OSError:
        return False


PARTS: Mapping[str, tuple[str, ...]] = {
    **{name: runner.preconditions for name, runner in RUNNERS.items() if runner.preconditions},
    "fabric": ("linux", "ip", "tc", "fabrics"),
    "ray": ("ray", "memory", "ray cluster"),
    "mlflow": ("mlflow", "data folder", "mlflow store"),
    "service": ("ray", "fastapi", "data folder", "service port"),
}
"""Runner or service -> names of the checks that it needs, in the order in which they are to be repaired."""


@dataclass(frozen=True, slots=True)
class Component:
    """A runner or a service.

    found:   the result of the check that decides
    missing: names of all checks that fail
    mend:    the command that repairs the first of them
    """

    name: str
    usable: bool
    found: str
    missing: tuple[str, ...]
    mend: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the runners and services that can be used."""

    checks: tuple[Check, ...]
    parts: tuple[Component, ...]

    @property
    def ready(self) -> bool:
        """Whether a campaign can run here."""
        return all(check.ok for check in self.checks if check.required)


def diagnose() -> Diagnosis:
    """Check this machine and the services that it is configured for; takes a second or two."""
    home = Home.from_environment()
    checks = (
        *machine_checks(),
        installed("fastapi", "the service", "pip install 'chorale-collectives[serve]'"),
        *service_checks(home),
    )
    named = {check.name: check for check in checks}
    return Diagnosis(checks, tuple(_part(name, [named[check] for check in needs]) for name, needs in PARTS.items()))


def _part(name: str, needs: Sequence[Check]) -> Component:
    missing = [check for check in needs if not check.ok]
    deciding = missing[0] if missing else needs[-1]
    mend = (deciding.command or deciding.way_out) if missing else ""
    return Component(
        name, not missing, f"{deciding.name}: {deciding.found}", tuple(check.name for check in missing), mend
    )


def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine and what is missing; exit 3 if no campaign can run."""
    diagnosis = diagnose()
    parts, checks = ([asdict(item) for item in items] for items in (diagnosis.parts, diagnosis.checks))
    document = {"ready": diagnosis.ready, "parts": parts, "checks": checks}
    if as_json:  # it may have to be compiled
        document |= _mpi_preload()
    exit_code = 0 if diagnosis.ready else Unavailable.exit_code
    title = "Ready to run campaigns" if diagnosis.ready else "Campaigns cannot run here yet"
    table = Table("part", "found", "missing", "run")
    table.title = title
    for part in diagnosis.parts:
        word, colour = ("usable", "green") if part.usable else ("not yet", "yellow")
        table.add_row(Text.assemble((word, colour), f" {part.name}"), part.found, ", ".join(part.missing), part.mend)
    print_result(Result(document, _checks(diagnosis.checks), table, exit_code=exit_code), as_json)


def _mpi_preload() -> dict[str, str | None]:
    """Return the library for LD_PRELOAD under MPI programs, built at the first time, or why there is none."""
    try:
        return {"mpi_preload": str(preload_library()), "mpi_preload_reason": None}
    except Unavailable as missing:
        return {"mpi_preload": None, "mpi_preload_reason": str(missing)}


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("finding", "found", "needed for", "to get it")
    for check in checks:
        colour = "green" if check.ok else "red" if check.required else "yellow"
        way_out = "" if check.ok else check.way_out
        state = Text.assemble(("ok" if check.ok else "missing", colour), f" {check.name}")
        table.add_row(state, check.found, check.needed_for, way_out)
    return table
