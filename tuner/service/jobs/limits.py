"""Networks that requests name: specs without files, or documents, within the limits of the service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from synth.errors import InvalidInput
from synth.topology.check import check_topology
from synth.topology.exchange import from_bytes
from synth.topology.registry import TooLarge
from synth.topology.spec import parse_topology, plan_topology
from synth.topology.topology import Topology

BASE_BYTES = 340 * 2**20
"""A worker with everything imported and its kernels loaded."""

BYTES_PER_PAIR = 52
"""Per pair of nodes: columns of transfers, their sorted copies and the replay. Measured peaks are at most that:
hypercube:12 by bfb 33, 4,096 ranks of a switched fabric by forest 52."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The most that one job may ask for."""

    nodes: int = 16_384
    memory_bytes: int = 8 * _GIB


def memory_estimate(nodes: int) -> int:
    """Return an upper estimate of the peak memory of a synthesis on `nodes` nodes, in bytes."""
    return BASE_BYTES + BYTES_PER_PAIR * nodes**2


def require_affordable(nodes: int, what: str, limits: JobLimits) -> int:
    """Return the estimate of memory; InvalidInput with it if the job is beyond `limits`."""
    estimate = memory_estimate(nodes)
    told = f"{what}: {nodes} nodes, about {_text(estimate)}"
    if nodes > limits.nodes:
        rule = f"a job must have at most {limits.nodes} nodes"
        raise InvalidInput(rule, told, "use the `chorale` command on a machine of your own, or ask for a higher limit")
    if estimate > limits.memory_bytes:
        rule = f"a job must need at most {_text(limits.memory_bytes)} of memory"
        raise InvalidInput(rule, told, "choose a smaller network, or ask for a higher limit")
    return estimate


def network_too_large(error: TooLarge, limits: JobLimits) -> InvalidInput:
    """Return the refusal of a network that is beyond every limit, with the estimate."""
    estimate = _text(memory_estimate(error.nodes))
    rule = f"a job must have at most {limits.nodes} nodes"
    return InvalidInput(rule, f"{error.value}: {error.nodes} nodes, about {estimate}", "choose a smaller network")


def _text(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB"


SENT = "file:network"
"""Spec of networks that came as documents: their schedules carry the whole network."""

Named = str | dict[str, Any]


def network_of(named: Named, limits: JobLimits) -> tuple[Topology, int]:
    """Return the checked topology and the memory that a synthesis on it may take.

    Its size is looked at before it is built. Nothing is read from files. InvalidInput says what is wrong, or the
    estimate that is beyond the limits.
    """
    if isinstance(named, dict):
        nodes = named.get("nodes")
        count = len(nodes) if isinstance(nodes, list) else 0
        memory_bytes = require_affordable(count, "the network", limits)
        return from_bytes(json.dumps(named).encode(), SENT), memory_bytes
    try:
        plan = plan_topology(named)
    except TooLarge as error:
        raise network_too_large(error, limits) from error
    memory_bytes = require_affordable(plan.nodes, named, limits)
    return check_topology(plan.build()), memory_bytes


def rebuilt(named: Named) -> Topology:
    """Return the topology once more, in a worker; its size was looked at before."""
    return parse_topology(named) if isinstance(named, str) else from_bytes(json.dumps(named).encode(), SENT)
