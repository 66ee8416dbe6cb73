"""Faults of hosts and links under launches on a Ray cluster of emulated hosts."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from chorale.tuner.files.home import Home
from tests.integration.faults.hosts import cluster, environment
from tests.integration.faults.launched import Launched, Setting, Strike
from tests.integration.faults.rows import Fault

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

FAULTS = {
    "host without the launch killed": Fault(lambda launched: launched.setting.hosts[WATCHER - 1].kill(), attached),
    "host of a detached launch killed": Fault(lambda launched: launched.setting.hosts[LAUNCHER].kill(), detached),
    "host of a detached launch cut off for 10 s": Fault(cut(LAUNCHER, 10.0), detached),
    "host of a detached launch cut off for 60 s": Fault(cut(LAUNCHER, 60.0), detached),
    "host of a detached launch cut off for good": Fault(cut(LAUNCHER, float("inf")), detached),
    "host of who follows cut off for 10 s": Fault(cut(WATCHER, 10.0), detached, join_again),
    "host that measures cut off for good": Fault(cut(LAUNCHER, float("inf")), attached),
    "host of an attached launch cut off for 10 s": Fault(cut(WATCHER, 10.0), attached, join_again),
    "link that drops out again and again": Fault(flap, attached),
    "link at 256 kbit/s with losses": Fault(lambda launched: launched.setting.hosts[LAUNCHER].squeeze(), attached),
}
