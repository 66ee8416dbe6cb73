"""Detached watches of `chorale watch`: start, follow and end them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import absolute_spec
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.detached import DetachedWatch, WatchStatus, detached_watch_name
from chorale.tuner.watch.renewal import Event

if TYPE_CHECKING:
    from chorale.runners.ray.detached import DetachedActor, DetachedActors

_POLL_S = 1.0
_STOP_PATIENCE_S = 60.0


def do_detached(action: str, config: WatchConfig, address: str | None, write: Callable[[Event], None]) -> None:
    """Start (`detach`), `follow` or `stop` the detached watch of `config`; `write` is given events."""
    if action == "detach":
        start_watch(config, address)
    elif action == "stop":
        end_watch(config, address)
    else:
        follow_watch(config, address, write)


def start_watch(config: WatchConfig, address: str | None) -> None:
    """Start a detached watch in the cluster, on this node; CheckFailed if one of its name is running there."""
    home = Home.from_environment()
    home.create(home.root)
    changes = {
        "topology": absolute_spec(config.topology),
        "table": config.table.absolute(),
        "jobs": [path.absolute() for path in config.jobs],
        "publish": config.publish.model_copy(update={"mlflow_uri": config.publish.mlflow_uri or home.mlflow_uri}),
    }
    document = config.model_copy(update=changes).model_dump(mode="json")
    name = detached_watch_name(config.name)
    with _actors(address) as actors:
        former = actors.find(name)
        if former is not None:
            status: WatchStatus = former.call("status", 0)
            if status.is_running:
                way_out = "end it with `chorale watch FABRIC.yaml --stop`"
                raise CheckFailed("a cluster must have one watch of a name", f"{config.name} is running", way_out)
            former.remove()
        actor = actors.start(name, DetachedWatch, (document, home.root))
        actor.call("status", 0)
    people.print(f"{config.name} is watched; `chorale watch FABRIC.yaml --follow` prints what happens", highlight=False)


def follow_watch(config: WatchConfig, address: str | None, write: Callable[[Event], None]) -> None:
    """Give the events of a detached watch to `write`, until it has ended; raise what has ended it."""
    with _actors(address) as actors:
        actor, received = _find(actors, config.name), 0
        while True:
            status: WatchStatus = actor.call("status", received)
            for event in status.events:
                write(event)
            received = status.total
            if not status.is_running:
                break
            time.sleep(_POLL_S)
    if status.error is not None:
        raise status.error


def end_watch(config: WatchConfig, address: str | None) -> None:
    """End a detached watch and remove it from the cluster; what it has published stays."""
    with _actors(address) as actors:
        actor = _find(actors, config.name)
        actor.call("stop")
        deadline_s = time.monotonic() + _STOP_PATIENCE_S
        while actor.call("status", 0).is_running and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        actor.remove()


def _actors(address: str | None) -> DetachedActors:
    from chorale.runners.ray.detached import DetachedActors  # noqa: PLC0415 - Ray takes a second

    return DetachedActors(address)


def _find(actors: DetachedActors, name: str) -> DetachedActor:
    actor = actors.find(detached_watch_name(name))
    if actor is None:
        rule, way_out = (
            "the watch must be detached in this cluster",
            "start it with `chorale watch FABRIC.yaml --detach`",
        )
        raise CheckFailed(rule, name, way_out)
    return actor
