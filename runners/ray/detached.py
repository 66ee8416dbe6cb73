"""Starts and finds detached Ray actors, which outlive this process. Ray restarts them if they or their node die."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Self

from chorale.runners.ray.cluster import NAMESPACE, RayCluster, ray
from chorale.runners.ray.watch import head_answers
from chorale.synth.errors import CheckFailed, Unavailable

RETRY_PAUSE_S = 0.5
SLICE_S = 5.0
_log = logging.getLogger("chorale.ray")
POLL_S = 0.05
REMOVAL_TIMEOUT_S = 10.0


class DetachedActors:
    """Starts and finds detached actors in the cluster at `address`, or else at RAY_ADDRESS, or else on this machine.

    The cluster must be running already: actors that outlive this process cannot live in a cluster that ends with it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._cluster = RayCluster.existing(address)
        self.address = address or os.environ.get("RAY_ADDRESS") or ray.get_runtime_context().gcs_address

    def start(self, name: str, kind: type, arguments: tuple[Any, ...]) -> DetachedActor:
        """Create an actor of the class `kind` with the name `name`; if it exists already, return the existing one.

        The actor's process runs on this process's node, or on another node if this one is gone. It reserves no CPU. If
        the actor dies, Ray restarts it with the same arguments, any number of times.
        """
        node = ray.get_runtime_context().get_node_id()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        # One byte of memory, because Ray ignores the scheduling strategy of actors that need no resources.
        actor_class: Any = ray.remote(num_cpus=0, memory=1, max_restarts=-1, max_task_retries=0)(kind)
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        return DetachedActor(name, actor_class.options(**options, scheduling_strategy=here).remote(*arguments))

    def find(self, name: str) -> DetachedActor | None:
        """Return the actor called `name`, or None if it does not exist."""
        try:
            return DetachedActor(name, ray.get_actor(name, NAMESPACE))
        except ValueError:
            return None

    def close(self) -> None:
        """Leave the cluster. Safe to call twice."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DetachedActor:
    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    def call(self, method: str, *arguments: Any, timeout_s: float = 120.0) -> Any:
        """Call `method` and return its result. If the actor is restarting, wait for it, at most about `timeout_s`.

        The method may be executed more than once. Raises the method's errors, CheckFailed if the actor has been
        removed, and Unavailable if there is no reply in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                left_s = min(SLICE_S, max(RETRY_PAUSE_S, deadline_s - time.monotonic()))
                return ray.get(getattr(self._actor, method).remote(*arguments), timeout=left_s)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.ActorDiedError) as error:
                try:
                    self._actor = ray.get_actor(self.name, NAMESPACE)
                except ValueError:
                    raise CheckFailed(f"{self.name} was removed from the cluster", "", "start it again") from error
                if time.monotonic() > deadline_s:
                    raise self._unavailable(error) from error
                time.sleep(RETRY_PAUSE_S)
            except ray.exceptions.GetTimeoutError as error:  # the message may have been lost, so it is sent again
                if time.monotonic() > deadline_s:
                    raise self._unavailable(error) from error
                address = ray.get_runtime_context().gcs_address
                if not head_answers(address, SLICE_S):
                    way_out = "look at the machine of the head, then start the cluster again"
                    value = f"{address}: no answer"
                    raise Unavailable("the Ray cluster cannot be reached: {}", value, way_out) from error
                waited_s = timeout_s - (deadline_s - time.monotonic())
                _log.warning("%s has not answered for %.0f s; trying again (ctrl-C ends this)", self.name, waited_s)

    def remove(self) -> None:
        """Remove the actor permanently. Return when it no longer responds; its name can then be used again."""
        ray.kill(self._actor, no_restart=True)
        deadline_s = time.monotonic() + REMOVAL_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                ray.get(self._actor.__ray_ready__.remote(), timeout=RETRY_PAUSE_S)
            except ray.exceptions.ActorDiedError:
                return
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
                continue
            time.sleep(POLL_S)

    def _unavailable(self, error: Exception) -> Unavailable:
        value = " ".join(f"{error}".split()) or "no answer"
        return Unavailable(
            f"{self.name} does not answer: {{}}", value, "look at the nodes of the cluster with `ray status`"
        )
