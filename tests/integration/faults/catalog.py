"""All single faults, by the name of their row."""

import fcntl
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_pages import password_file
from tests.integration.faults.hosts import ROOT, cluster, environment
from tests.integration.faults.launched import Launched, Setting, Strike, alone, lasting
from tests.integration.faults.rows import Fault
from tests.integration.mlflow_server import address, kill_group, start_server, wait_until_healthy
from tests.local_stack.stack import SEARCHES, Stack
from tests.waiting import free_port

DAY_S = 86400
_CLOCK = """
import os, time
_time, _time_ns, _file = time.time, time.time_ns, os.environ["CHORALE_TEST_CLOCK"]
def _offset():
    try:
        return int(open(_file).read() or 0)
    except OSError:
        return 0
time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + _offset() * 10**9
"""


@contextmanager
def watched_clock(folder: Path) -> Iterator[Setting]:
    """Every Python process of the launch adds to its wall clock what a file says."""
    with alone(folder) as setting:
        (folder / "clock").mkdir()
        (folder / "clock" / "sitecustomize.py").write_text(_CLOCK)
        setting.environment["PYTHONPATH"] = f"{folder / 'clock'}:{ROOT}"
        setting.environment["CHORALE_TEST_CLOCK"] = str(folder / "offset")
        yield setting


def jump(seconds: int) -> Strike:
    return lambda launched: (launched.setting.folder / "offset").write_text(str(seconds))


HOSTS = 3
HEAD, LAUNCHER, WATCHER = range(HOSTS)
"""The host of the head; that where a detached launch begins; that from which it is watched, or an attached one runs."""


@contextmanager
def on_hosts(folder: Path, detached: bool) -> Iterator[Setting]:
    home = Home(folder / "home")
    home.create(home.root)
    with cluster(HOSTS, home.root) as hosts:
        yield Setting(folder, home, environment(home.root), {"parallel": 4}, hosts, detached)


def cut(host: int, seconds: float) -> Strike:
    """Pull the cable of a host for some time, or for good (`inf`); work elsewhere goes on meanwhile."""

    def strike(launched: Launched) -> None:
        launched.setting.hosts[host].link("down")
        if seconds < float("inf"):
            time.sleep(seconds)
            launched.setting.hosts[host].link("up")

    return strike


def flap(launched: Launched) -> None:
    """The cable of the launching host is out for a second, twelve times in half a minute."""
    for _ in range(12):
        cut(LAUNCHER, 1.0)(launched)
        time.sleep(1.5)


def join_again(launched: Launched) -> None:
    """Start a Ray node anew on the host from which people watch: the cluster has given the former one up."""
    hosts = launched.setting.hosts
    hosts[WATCHER].join(launched.setting.whole_environment, hosts[HEAD])


attached: Callable[[Path], AbstractContextManager[Setting]] = partial(on_hosts, detached=False)
detached: Callable[[Path], AbstractContextManager[Setting]] = partial(on_hosts, detached=True)

DISK_BYTES = 64 * 2**20
_SHUT_DOWN = 0x8004587D
"""FS_IOC_GOINGDOWN: from then on a file system answers everything with an error, as a lost file server does."""
_WITHOUT_LOG = 2


def _mount(folder: Path) -> None:
    _do("mount", "-o", "loop", str(folder / "disk"), str(folder / "home"))


def _unmount(folder: Path) -> None:
    _do("umount", "-l", str(folder / "home"))


def _do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def disk(folder: Path) -> Iterator[Setting]:
    (folder / "home").mkdir()
    with (folder / "disk").open("wb") as image:
        image.truncate(DISK_BYTES)
    _do("mkfs.ext4", "-q", str(folder / "disk"))
    _mount(folder)
    try:
        yield Setting(folder, Home(folder / "home"))
    finally:
        _unmount(folder)


def fill(launched: Launched) -> None:
    """Take all room, to the last block, for root too."""
    with (launched.home.root / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def make_room(launched: Launched) -> None:
    (launched.home.root / "filler").unlink()


def shut_down(launched: Launched) -> None:
    root = os.open(launched.home.root, os.O_RDONLY)
    fcntl.ioctl(root, _SHUT_DOWN, struct.pack("I", _WITHOUT_LOG))
    os.close(root)


def mount_again(launched: Launched) -> None:
    """What was on the disk is there again."""
    _unmount(launched.setting.folder)
    _mount(launched.setting.folder)


def move_back(launched: Launched) -> None:
    """Whatever was made at the old place makes way."""
    if launched.home.root.exists():
        launched.home.root.rename(launched.home.root.with_name("made-meanwhile"))
    launched.home.root.with_name("moved").rename(launched.home.root)


@contextmanager
def mlflow(folder: Path) -> Iterator[Setting]:
    home, port = Home(folder / "server"), free_port()
    home.create(home.root)
    process = start_server(home, port)
    wait_until_healthy(port, process)
    setting = Setting(folder, Home(folder / "home"), uri=address(home, port))
    setting.environment["MLFLOW_TRACKING_URI"] = str(setting.uri)
    setting.servers = {"mlflow": process, "home": home, "port": port}
    try:
        yield setting
    finally:
        kill_group(setting.servers["mlflow"])


def kill_server(launched: Launched) -> None:
    kill_group(launched.setting.servers["mlflow"])


def start_server_again(launched: Launched) -> None:
    servers = launched.setting.servers
    servers["mlflow"] = start_server(servers["home"], servers["port"])
    wait_until_healthy(servers["port"], servers["mlflow"])


def signal_server(number: signal.Signals) -> Strike:
    return lambda launched: os.killpg(launched.setting.servers["mlflow"].pid, number)


def revoke_password(launched: Launched) -> None:
    kill_server(launched)
    file = password_file(launched.setting.servers["home"])
    file.write_text(file.read_text().strip()[::-1] + "\n")
    start_server_again(launched)


def tell_password(launched: Launched) -> None:
    servers = launched.setting.servers
    launched.setting.uri = address(servers["home"], servers["port"])
    launched.setting.environment["MLFLOW_TRACKING_URI"] = launched.setting.uri


@contextmanager
def postgres(folder: Path) -> Iterator[Setting]:
    with Stack() as stack:
        stack.start(("postgres",))
        database, _, _ = stack.database_url.rpartition("/")
        setting = Setting(folder, Home(folder / "home"), campaign={"storage": f"{database}/{SEARCHES}"})
        setting.servers = {"postgres": stack}
        yield setting


def kill_postgres(launched: Launched) -> None:
    """Kill the first process of PostgreSQL, which takes the others along."""
    folder = str(launched.setting.servers["postgres"].folder / "postgres")
    found = [process for process in psutil.process_iter(["cmdline"]) if folder in (process.info["cmdline"] or ())]
    found[0].kill()


def start_postgres_again(launched: Launched) -> None:
    stack = launched.setting.servers["postgres"]
    stack.require_running()
    stack._wait(stack.services["postgres"])


FOR_GOOD = float("inf")
STOP, GO_ON = signal_server(signal.SIGSTOP), signal_server(signal.SIGCONT)
FAULTS: Mapping[str, Fault] = {
    "workers killed": Fault(lambda launched: [worker.kill() for worker in launched.workers()]),
    "fork server killed": Fault(lambda launched: launched.child("forkserver").kill()),
    "host without the launch killed": Fault(lambda launched: launched.setting.hosts[WATCHER - 1].kill(), attached),
    "host of a detached launch killed": Fault(lambda launched: launched.setting.hosts[LAUNCHER].kill(), detached),
    "host of a detached launch cut off for 10 s": Fault(cut(LAUNCHER, 10.0), detached),
    "host of a detached launch cut off for 60 s": Fault(cut(LAUNCHER, 60.0), detached),
    "host of a detached launch cut off for good": Fault(cut(LAUNCHER, FOR_GOOD), detached),
    "host of who follows cut off for 10 s": Fault(cut(WATCHER, 10.0), detached, join_again),
    "host that measures cut off for good": Fault(cut(LAUNCHER, FOR_GOOD), attached),
    "host of an attached launch cut off for 10 s": Fault(cut(WATCHER, 10.0), attached, join_again),
    "link that drops out again and again": Fault(flap, attached),
    "link at 256 kbit/s with losses": Fault(lambda launched: launched.setting.hosts[LAUNCHER].squeeze(), attached),
    "disk full for 5 s": Fault(lasting(5.0, fill, make_room), disk),
    "disk full for good": Fault(fill, disk, make_room),
    "file server gone for good": Fault(shut_down, disk, mount_again),
    "folder of the launch moved away": Fault(
        lambda launched: launched.home.root.rename(launched.home.root.with_name("moved")), mend=move_back
    ),
    "MLflow server killed, back after 10 s": Fault(
        lasting(10.0, kill_server, start_server_again), mlflow, resumes=True
    ),
    "MLflow server killed for good": Fault(kill_server, mlflow, start_server_again, resumes=True),
    "MLflow server stopped for 20 s": Fault(lasting(20.0, STOP, GO_ON), mlflow),
    "MLflow server stopped for good": Fault(STOP, mlflow, GO_ON, resumes=True),
    "MLflow's password revoked": Fault(revoke_password, mlflow, tell_password, resumes=True),
    "PostgreSQL of the search killed": Fault(kill_postgres, postgres, start_postgres_again),
    "wall clock a day ahead (injected)": Fault(jump(DAY_S), watched_clock),
    "wall clock a day back (injected)": Fault(jump(-DAY_S), watched_clock),
}
"""`tests.soak` has the faults of the launch itself."""
