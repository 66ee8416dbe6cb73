"""A pool of Ray actors that survives the death of any of them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.workers import Completion, Future
from chorale.runners.ray.cluster import ray
from chorale.runners.ray.fault_tolerance import WorkerNodes
from chorale.synth.errors import Unavailable

MAX_ATTEMPTS = 4
START_TIMEOUT_S = 150.0  # Ray notices after 60 s that a worker process died while it started
SHUTDOWN_TIMEOUT_S = 5.0
POLL_S = 1.0
MANY_REFERENCES, GATHER_S, LONGEST_GATHER_S = 64, 20e-6, 0.1
"""From that many references on results are gathered, for a time per reference of some ten times what a look costs."""

_log = logging.getLogger("chorale.ray")


def without_value(error: BaseException) -> Completion[Any]:
    """Return the completion of work whose failures are not defined as values."""
    return Completion(None, error)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of `method` on whichever actor is free. `limit_s` counts from when it is sent to the actor.

    returned, failed: what a value, or the error that the call ended with, means for whoever waits for it
    """

    method: str
    arguments: tuple[Any, ...]
    limit_s: float | None = None
    returned: Callable[[Any], Completion[Any]] = Completion
    failed: Callable[[BaseException], Completion[Any]] = without_value


@dataclass(slots=True, eq=False)
class _Job:
    call: Call
    future: Future[Any]
    attempts: int = 0

    def end(self, completion: Completion[Any]) -> Future[Any]:
        self.future.complete(completion)
        return self.future


@dataclass(slots=True)
class _Flight:
    job: _Job
    deadline_s: float


@dataclass(slots=True, eq=False)
class _Slot:
    """One actor: starting until `start` has come back, then working on the jobs in `flights`."""

    actor: Any
    start: Any
    started_s: float
    node: str = ""
    flights: dict[Any, _Flight] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.start is None


RetryPredicate = Callable[[Future[Any], Any, Callable[[], bool]], bool]
"""Whether the call behind this future is to be done again after this value; the last argument asks the cluster whether
that would be elsewhere."""


class RayPool:
    """`size` actors of the class `kind` that take calls in the order of submission.

    An actor that dies, alone or with its node, is replaced, and its calls are done again, at most
    `MAX_ATTEMPTS` times each; so methods must be pure or bear a second call. Calls go only to actors
    that have started, so a cluster that shrank works on with the actors it has room for. Each actor holds what `nodes`,
    which pools may share, ask for, or `resource_request`, by default one CPU. `should_retry` may send a call to another
    node after a value that it does not accept. Not thread-safe.
    """

    def __init__(
        self,
        kind: type,
        arguments: tuple[Any, ...],
        size: int,
        *,
        jobs_per_actor: int = 1,
        resource_request: ResourceRequest | None = None,
        nodes: WorkerNodes | None = None,
        should_retry: RetryPredicate = lambda future, value, elsewhere: False,
    ) -> None:
        self._nodes = nodes or WorkerNodes(resource_request or ResourceRequest())
        self._new_actor: Callable[[str], Any] = lambda away_from: ray.remote(
            max_restarts=0, **self._nodes.actor_options(away_from)
        )(kind).remote(*arguments)
        self._should_retry = should_retry
        self._jobs_per_actor = jobs_per_actor
        self._waiting: deque[_Job] = deque()
        self._failed_starts = 0
        self._slots = [self._new_slot() for _ in range(size)]

    @property
    def size(self) -> int:
        return len(self._slots)

    @property
    def pending(self) -> int:
        """Jobs submitted and not yet handed back."""
        return len(self._waiting) + sum(len(slot.flights) for slot in self._slots)

    @property
    def started(self) -> int:
        """Actors that have started."""
        return sum(slot.is_ready for slot in self._slots)

    @property
    def is_starved(self) -> bool:
        """Whether jobs wait and no actor has started."""
        return bool(self._waiting) and not self.started

    @property
    def has_all_started(self) -> bool:
        """Whether every actor has started."""
        return self.started == self.size

    def grow(self, size: int) -> None:
        """Start actors until there are `size`."""
        self._slots += [self._new_slot() for _ in range(size - len(self._slots))]

    def shrink(self, size: int) -> None:
        """Stop actors until there are `size`: first those that wait for a node; others do their jobs again."""
        for slot in sorted(self._slots, key=lambda slot: (slot.is_ready, len(slot.flights)))[: self.size - size]:
            self._requeue([flight.job for flight in slot.flights.values()])
            ray.kill(slot.actor)
            self._slots.remove(slot)

    def submit(self, call: Call) -> Future[Any]:
        """Queue `call`; it starts as soon as an actor has room."""
        return self.submit_all([call])[0]

    def submit_all(self, calls: Iterable[Call]) -> list[Future[Any]]:
        """Queue `calls` in their order; one look at the actors for all of them."""
        jobs = [_Job(call, Future()) for call in calls]
        self._waiting.extend(jobs)
        self._dispatch()
        return [job.future for job in jobs]

    def references(self) -> list[Any]:
        """Return what Ray can wait for on behalf of this pool."""
        starts = [slot.start for slot in self._slots if not slot.is_ready]
        return starts + [reference for slot in self._slots for reference in slot.flights]

    def collect(self) -> list[Future[Any]]:
        """Complete and return the futures of what has finished by now; replace the actors that died or were late.

        Raises Unavailable if jobs wait and no actor could start within `START_TIMEOUT_S`.
        """
        references = self.references()
        arrived: set[Any] = set()
        if references:  # with many actors for a moment, so that what each look costs is shared by many results
            pause_s = 0.0 if len(references) < MANY_REFERENCES else min(GATHER_S * len(references), LONGEST_GATHER_S)
            arrived.update(ray.wait(references, num_returns=len(references), timeout=pause_s)[0])
        finished: list[Future[Any]] = []
        for slot in list(self._slots):
            self._settle_start(slot, arrived)
            for reference in [flight for flight in slot.flights if flight in arrived]:
                finished += self._settle_flight(slot, reference)
            finished += self._settle_deadlines(slot)
        self._leave_silent_nodes()
        self._dispatch()
        self._check_some_started()
        return finished

    def close(self, shutdown_method: str | None = None) -> None:
        """Kill the actors and drop all jobs. Safe to call twice.

        `shutdown_method` names a method that idle actors run first, within `SHUTDOWN_TIMEOUT_S`.
        """
        if ray.is_initialized():
            idle = [slot.actor for slot in self._slots if slot.is_ready and not slot.flights]
            shutdowns = [getattr(actor, shutdown_method).remote() for actor in idle] if shutdown_method else []
            if shutdowns:
                ray.wait(shutdowns, num_returns=len(shutdowns), timeout=SHUTDOWN_TIMEOUT_S)
            for slot in self._slots:
                ray.kill(slot.actor)
        self._nodes.silent.close()
        self._slots.clear()
        self._waiting.clear()

    def _new_slot(self, away_from: str = "") -> _Slot:
        actor = self._new_actor(away_from)
        return _Slot(actor, actor.__ray_call__.remote(_node_of), time.monotonic())

    def _dispatch(self) -> None:
        for slot in self._slots:
            if not self._waiting:
                return
            while slot.is_ready and self._waiting and len(slot.flights) < self._jobs_per_actor:
                job = self._waiting.popleft()
                limit_s = float("inf") if job.call.limit_s is None else job.call.limit_s
                reference = getattr(slot.actor, job.call.method).remote(*job.call.arguments)
                slot.flights[reference] = _Flight(job, time.monotonic() + limit_s)

    def _settle_start(self, slot: _Slot, arrived: set[Any]) -> None:
        if slot.is_ready or slot.start not in arrived:
            return
        try:
            slot.node = ray.get(slot.start)
        except ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_ATTEMPTS:
                way_out = "check that this package is installed on all nodes of the cluster"
                raise Unavailable("a Ray actor must be able to start", error, way_out) from error
            self._replace(slot)
        else:
            slot.start = None
            self._nodes.watch(each.node for each in self._slots)

    def _leave_silent_nodes(self) -> None:
        """Do elsewhere, where there is an elsewhere, what the actors of nodes that answer no more were doing."""
        silent = self._nodes.silent.now
        for slot in [slot for slot in self._slots if slot.node in silent]:
            if self._nodes.has_alternative_to(slot.node):
                _log.warning("node %s does not answer; another does its work again", slot.node[:12])
                self._requeue([flight.job for flight in slot.flights.values()])
                self._replace(slot, slot.node)

    def _settle_flight(self, slot: _Slot, reference: Any) -> list[Future[Any]]:
        flight = slot.flights.get(reference)
        if flight is None:  # the actor was replaced while this batch was settled
            return []
        try:
            value = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            del slot.flights[reference]
            return [flight.job.end(flight.job.call.failed(error.cause))]
        except ray.exceptions.RayError as error:
            return self._retry(slot, error)
        has_alternative = partial(self._nodes.has_alternative_to, slot.node)
        if self._should_retry(flight.job.future, value, has_alternative):
            elsewhere = has_alternative()
            self._nodes.record_failure(slot.node)
            self._requeue([other.job for other in slot.flights.values()])
            if elsewhere:
                self._replace(slot, slot.node)
            slot.flights.clear()
            return []
        del slot.flights[reference]
        self._nodes.record_success(slot.node)
        return [flight.job.end(flight.job.call.returned(value))]

    def _settle_deadlines(self, slot: _Slot) -> list[Future[Any]]:
        now_s = time.monotonic()
        late = [reference for reference, flight in slot.flights.items() if now_s > flight.deadline_s]
        if not late:
            return []
        jobs = [slot.flights.pop(reference).job for reference in late]
        self._requeue([flight.job for flight in slot.flights.values()])
        self._nodes.record_failure(slot.node)
        self._replace(slot)
        return [job.end(job.call.failed(TimeoutError(f"no answer within {job.call.limit_s:.0f} s"))) for job in jobs]

    def _retry(self, slot: _Slot, error: Exception) -> list[Future[Any]]:
        """Put what a dead actor was working on back in front; give up on jobs that were tried often enough."""
        jobs = [flight.job for flight in slot.flights.values()]
        for job in jobs:
            job.attempts += 1
        _log.warning("a Ray worker died with %d task(s); a new one does them again", len(jobs))
        _log.debug("%s", error)
        self._nodes.record_failure(slot.node)
        again = [job for job in jobs if job.attempts < MAX_ATTEMPTS]
        self._requeue(again)
        self._replace(slot)
        rule = f"a worker must survive its task within {MAX_ATTEMPTS} attempts"
        way_out = "look for a lack of memory on the nodes, or use fewer workers"
        return [job.end(job.call.failed(Unavailable(rule, error, way_out))) for job in jobs if job not in again]

    def _requeue(self, jobs: list[_Job]) -> None:
        self._waiting.extendleft(reversed(jobs))

    def _replace(self, slot: _Slot, away_from: str = "") -> None:
        ray.kill(slot.actor)
        self._slots[self._slots.index(slot)] = self._new_slot(away_from)
        slot.flights.clear()

    def _check_some_started(self) -> None:
        if not self.is_starved:
            return
        if all(time.monotonic() - slot.started_s > START_TIMEOUT_S for slot in self._slots):
            value = f"{len(self._slots)} actors without a node after {START_TIMEOUT_S:.0f} s"
            rule = f"a Ray actor needs a node with {self._nodes.resource_request}"
            raise Unavailable(rule, value, "ask for fewer workers or free the cluster")


def _node_of(_actor: Any) -> str:
    """Return the node on which this runs; called inside an actor as soon as it has started."""
    return str(ray.get_runtime_context().get_node_id())


def wait_for_results(pools: Iterable[RayPool], timeout_s: float = POLL_S) -> list[Future[Any]]:
    """Return the futures of `pools` that are completed now, after waiting at most `timeout_s` for the first."""
    pools = list(pools)
    references = [reference for pool in pools for reference in pool.references()]
    if references:
        ray.wait(references, num_returns=1, timeout=timeout_s)
    return [future for pool in pools for future in pool.collect()]
