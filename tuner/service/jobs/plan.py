"""From a request to an order: what is to be computed, under which key, at what cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synth.collective import parse_collective
from synth.errors import InvalidInput
from synth.finder.query import Query
from synth.identity import content_id
from synth.lowering.targets import target_named
from synth.methods import method_named
from synth.topology.isomorphism import shape_key
from synth.topology.topology import Topology
from tuner.reports.synthesis import is_symmetric
from tuner.service.jobs.job_specs import BoundSpec, FindSpec, JobSpec, PriceSpec, ProgramSpec, SynthesisSpec
from tuner.service.jobs.job_store import JobStore
from tuner.service.jobs.limits import JobLimits, Named, memory_estimate, network_of, require_affordable
from tuner.service.jobs.tasks import SCHEDULE_FILE, Task

VERSION = 1
"""Of what workers compute: another number makes all results anew."""

_FIND_NODES, _BOUND_NODES = 4096, 1024
"""So many nodes count for the memory of a search, which verifies schedules up to there, and of a bound."""


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request. `shape`: key of results on equal networks with other names, None where names matter."""

    kind: str
    request: dict[str, Any]
    key: str
    memory_bytes: int
    network: Named | None = None
    shape: str | None = None
    schedule: str | None = None

    def task(self, store: JobStore) -> Task:
        """Return what a worker gets."""
        schedule = None if self.schedule is None else _content(store, self.schedule)
        keys = [] if self.shape is None else store.keys_of_shape(self.shape)
        return Task(self.kind, self.network, self.request, schedule, tuple(_content(store, key) for key in keys))


def order_for(body: JobSpec, limits: JobLimits, store: JobStore) -> Order:
    """Return the order for what a client asks; raise InvalidInput for what is not possible."""
    return _ORDERS[type(body)](body, limits, store)


def order_of(kind: str, request: dict[str, Any], limits: JobLimits, store: JobStore) -> Order:
    """Return the order for a request that was accepted before, after a restart."""
    body_type, _ = _KINDS[kind]
    return order_for(body_type.model_validate(request), limits, store)


def _synthesis_order(body: SynthesisSpec, limits: JobLimits, _store: JobStore) -> Order:
    method = method_named(body.method)
    topology, memory_bytes = network_of(body.topology, limits)
    collective = _collective(body.collective, body.root, topology)
    if collective.name not in method.collectives:
        known = ", ".join(method.collectives)
        raise InvalidInput(f"{method.name} makes {known}", body.collective, "choose another method or collective")
    wanted = body.model_dump(exclude={"topology", "priority"})
    key = _key("synthesis", {"topology": topology.id, **wanted})
    renameable = not collective.is_rooted and body.size_bytes is None and not is_symmetric(topology, body.method)
    shape = _key("synthesis", {"shape": shape_key(topology), **wanted}) if renameable else None
    return Order("synthesis", _request(body), key, memory_bytes, body.topology, shape)


def _bound_order(body: BoundSpec, limits: JobLimits, _store: JobStore) -> Order:
    topology, _ = network_of(body.topology, limits)
    _collective(body.collective, body.root, topology)
    key = _key("bound", {"topology": topology.id, **body.model_dump(exclude={"topology", "priority"})})
    memory_bytes = memory_estimate(min(topology.node_count, _BOUND_NODES))
    return Order("bound", _request(body), key, memory_bytes, body.topology)


def _find_order(body: FindSpec, limits: JobLimits, _store: JobStore) -> Order:
    require_affordable(body.nodes, f"{body.nodes} nodes of degree {body.degree}", limits)
    Query(body.nodes, body.degree, body.bidirectional)
    key = _key("find", body.model_dump(exclude={"priority"}))
    return Order("find", _request(body), key, memory_estimate(min(body.nodes, _FIND_NODES)))


def _program_order(body: ProgramSpec, _limits: JobLimits, store: JobStore) -> Order:
    target_named(body.target)
    result = _synthesis(body.result, store)
    if result["schedule"]["form"] != "columns":
        rule = "a program is made of a schedule in columns"
        raise InvalidInput(rule, result["schedule"]["form"], "choose a smaller network, or lower the file by `chorale`")
    return _of_schedule("program", body, result)


def _price_order(body: PriceSpec, _limits: JobLimits, store: JobStore) -> Order:
    result = _synthesis(body.result, store)
    if result["unit"] == "link" and body.link_gbps is None:
        rule = "a network without bandwidths needs `link_gbps` to be priced"
        raise InvalidInput(rule, result["topology"]["spec"], "give Gbit/s of a link")
    return _of_schedule("price", body, result)


def _of_schedule(kind: str, body: ProgramSpec | PriceSpec, result: dict[str, Any]) -> Order:
    key = _key(kind, _exact(body.model_dump(exclude={"priority"})))
    memory_bytes = memory_estimate(result["topology"]["nodes"])
    return Order(kind, _request(body), key, memory_bytes, schedule=body.result)


def _synthesis(key: str, store: JobStore) -> dict[str, Any]:
    """Return the document of a synthesis that has a schedule file."""
    result = store.result(key)
    if result is None or store.file(key, SCHEDULE_FILE) is None:
        rule = "`result` must be the key of a finished synthesis"
        raise InvalidInput(rule, key, "take it from the field `result` of a job that is done")
    return result


def _collective(name: str, root: int, topology: Topology) -> Any:
    if root >= topology.compute_count:
        rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
        raise InvalidInput(rule, root, "choose a rank of the network")
    return parse_collective(name, root)


def _key(kind: str, facts: dict[str, Any]) -> str:
    return content_id({"format": f"chorale-{kind}/{VERSION}", **facts})


def _exact(facts: dict[str, Any]) -> dict[str, Any]:
    """Return `facts` with floats as text: content ids are of exact values."""
    return {name: repr(value) if isinstance(value, float) else value for name, value in facts.items()}


def _request(body: JobSpec) -> dict[str, Any]:
    return body.model_dump(mode="json")


def _content(store: JobStore, key: str) -> bytes:
    path = store.file(key, SCHEDULE_FILE)
    if path is None:
        raise InvalidInput("the schedule of a result must be there", key, "ask for the synthesis again")
    return path.read_bytes()


_KINDS: dict[str, tuple[type[JobSpec], Callable[..., Order]]] = {
    "synthesis": (SynthesisSpec, _synthesis_order),
    "bound": (BoundSpec, _bound_order),
    "find": (FindSpec, _find_order),
    "program": (ProgramSpec, _program_order),
    "price": (PriceSpec, _price_order),
}
_ORDERS = dict(_KINDS.values())
"""How an order is made of each body."""
