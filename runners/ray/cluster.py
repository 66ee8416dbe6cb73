"""Connects to an existing Ray cluster, or starts a small one on this machine. Only this module calls `ray.init`."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from chorale.runners.measurement.private_files import PRIVATE_FILE, PRIVATE_FOLDER, temporary_folder, write_private
from chorale.runners.ray.watch import ClusterWatch, head_answers, require_authentication
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.processors import core_count

# Ray reads these variables when it is imported. They turn off usage reports and warnings about accelerators. They make
# workers use the driver's environment instead of building a new one. They keep Ray from printing on our stdout, which
# is for results (Ray would print the deaths of workers there; Chorale logs these itself). And they let workers keep the
# driver's priority, because a lower one would make measurements even slower on a busy machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")

import ray
from ray.job_config import JobConfig

__all__ = ["NAMESPACE", "RayCluster", "ray"]

_log = logging.getLogger("chorale.ray")

NAMESPACE = "chorale"
NEWEST_LOCAL_CLUSTER = "auto"
LOCAL_OBJECT_STORE_BYTES = 512 * 2**20
START_ATTEMPTS = 3
ANSWER_LIMIT_S = 10.0
_AUTHENTICATION_WAY_OUT = "this cluster needs its own token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH=FILE, to it"
_ADDRESS_WAY_OUT = "check the address and RAY_ADDRESS, or start a cluster with `ray start --head`"
TOKEN_BYTES = 32
_OTHERS = 0o077
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable. If it is off, as it is by default on Windows and macOS, Ray uses only loopback."""
MAX_PARENT_BYTES = 36
"""Maximum length in bytes of the path of Ray's parent folder: Ray appends up to 70 characters, and socket paths are
limited to 107 bytes."""


class _SafeJob(JobConfig):
    """Ray's job settings. With them, workers only import modules from the working folder if this process does so too,
    because the files there may belong to another user.
    """

    def _get_proto_job_config(self) -> Any:
        if not {"", os.getcwd()} & set(sys.path):
            self._py_driver_sys_path = [path for path in self._py_driver_sys_path if path != os.getcwd()]
        return super()._get_proto_job_config()  # type: ignore[no-untyped-call]


class RayCluster:
    """A connection to Ray. Closing it shuts down the cluster only if this object started the cluster.

    `address` (or RAY_ADDRESS) names an existing cluster, which is left running. Without an address, this process's
    existing connection is used, if any; otherwise a local cluster is started with `cpus` logical CPUs, at least 2, so
    that one actor can measure while another prepares. The start may fail on a busy machine, so it is tried up to
    `attempts` times.

    A local cluster listens on loopback; its token and session folder belong to this user alone. An existing cluster
    must authenticate its users, unless `--insecure-cluster` was given.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None, *, attempts: int = START_ATTEMPTS) -> None:
        self.started = False
        self._joined = False
        self._watch: ClusterWatch | None = None
        target = address or os.environ.get("RAY_ADDRESS")
        if not ray.is_initialized():
            if target:
                _join(target)
            else:
                _start(max(2, cpus or core_count()), attempts)
            self.started, self._joined = not target, bool(target)
        if not ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
            self._watch = ClusterWatch(ray.get_runtime_context().gcs_address)

    @classmethod
    def existing(cls, address: str | None = None) -> RayCluster:
        """Connect to the running cluster at `address`, else at RAY_ADDRESS, else to the newest one on this machine."""
        return cls(address or os.environ.get("RAY_ADDRESS") or NEWEST_LOCAL_CLUSTER)

    @property
    def free(self) -> dict[str, float]:
        """Return Ray's name of each resource -> free amount, summed over all nodes."""
        return dict(ray.available_resources())  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Raise ClusterLost if the cluster no longer responds."""
        if self._watch is not None:
            self._watch.check()

    def close(self) -> None:
        """Stop the cluster if this object started it, otherwise only disconnect. Safe to call twice."""
        if (self.started or self._joined) and ray.is_initialized():
            ray.shutdown()
        if self._watch is not None:
            self._watch.close()
        self.started = self._joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _join(address: str) -> None:
    if ":" in address and not head_answers(address, ANSWER_LIMIT_S):  # otherwise Ray would try for minutes
        value = f"{address}: no answer in {ANSWER_LIMIT_S:.0f} s"
        raise Unavailable("the Ray cluster cannot be reached: {}", value, _ADDRESS_WAY_OUT)
    if address != NEWEST_LOCAL_CLUSTER:
        require_authentication(address)
    try:
        # Ray's client does not send its working folder.
        job = JobConfig() if address.startswith("ray://") else _SafeJob()
        ray.init(address=address, namespace=NAMESPACE, job_config=job, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many types here; each of them means that there is no such cluster
        way_out = _AUTHENTICATION_WAY_OUT if "auth" in str(error).lower() else _ADDRESS_WAY_OUT
        raise Unavailable("the Ray cluster cannot be reached: {}", f"{address}: {error}", way_out) from error
    if address == NEWEST_LOCAL_CLUSTER:  # only Ray knows its address
        try:
            require_authentication(ray.get_runtime_context().gcs_address)
        except ChoraleError:
            ray.shutdown()
            raise


def _start(cpus: int, attempts: int) -> None:
    """Start a cluster; a busy machine may need several attempts."""
    secure_token()
    # Ray would kill our small workers when some other program fills this machine's memory.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    for attempt in range(1, attempts + 1):
        try:
            with on_loopback():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    namespace=NAMESPACE,
                    job_config=_SafeJob(),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=LOCAL_OBJECT_STORE_BYTES,
                    _temp_dir=str(temporary_folder(MAX_PARENT_BYTES) / "ray"),  # Ray makes it accessible to all users
                )
            break
        except Exception as error:  # Ray raises many types here too: no port, no memory, a read-only folder, …
            ray.shutdown()
            if attempt == attempts:
                way_out = "see `chorale doctor`, or point RAY_ADDRESS at a running cluster"
                raise Unavailable("Ray could not start on this machine: {}", error, way_out) from error
            _log.warning("Ray did not start (attempt %d of %d); it is started again", attempt, attempts)
            _log.debug("%s", error)
            time.sleep(attempt)


def secure_token() -> None:
    """Create Ray's token file with access for this user only; Ray itself would let others read it. If the file exists,
    remove other users' access.

    If the home folder is not writable, the file is in this user's temporary folder. Does nothing if RAY_AUTH_TOKEN is
    set or Ray's authentication mode uses no token.
    """
    if os.environ.get("RAY_AUTH_TOKEN_PATH") == "":
        del os.environ["RAY_AUTH_TOKEN_PATH"]  # Ray would mistake it for a file name
    if "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    home = Path(os.path.expanduser("~"))
    if named := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        path = Path(named).expanduser()
    elif os.access(home, os.W_OK):
        path = home / ".ray" / "auth_token"
    else:
        path = temporary_folder() / "auth_token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(TOKEN_BYTES).encode(), replace=False)
    except FileExistsError:
        status = path.stat()  # other users could run code in clusters that accept this token
        if stat.S_IMODE(status.st_mode) & _OTHERS and status.st_uid == os.geteuid():
            with suppress(OSError):  # a read-only file, such as a secret that a container mounts
                path.chmod(PRIVATE_FILE)
                _log.warning("other users could read Ray's token %s until now: replace it if somebody may have", path)
    except OSError as error:
        way_out = "set RAY_AUTH_TOKEN_PATH to a file in your own folder"
        raise Unavailable("Ray's token cannot be written: {}", f"{path}: {error.strerror}", way_out) from error


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make all processes of a cluster that is started in the `with` block listen on loopback only."""
    from ray._private import ray_constants  # noqa: PLC0415 - after the settings that Ray reads when imported

    before, variable = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(_LOOPBACK_VARIABLE)
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[_LOOPBACK_VARIABLE] = "0"
    mask = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(mask)
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(_LOOPBACK_VARIABLE)
        if variable is not None:
            os.environ[_LOOPBACK_VARIABLE] = variable
