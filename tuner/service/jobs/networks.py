"""The networks that requests name: specs without files, or documents."""

from __future__ import annotations

import json
from typing import Any

from synth.topology.check import check_topology
from synth.topology.exchange import from_bytes
from synth.topology.registry import TooLarge
from synth.topology.spec import parse_topology, plan_topology
from synth.topology.topology import Topology
from tuner.service.jobs.estimate import Limits, refused, require_affordable

SENT = "file:network"
"""Spec of networks that came as documents: their schedules carry the whole network."""

Named = str | dict[str, Any]


def network_of(named: Named, limits: Limits) -> tuple[Topology, int]:
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
        raise refused(error, limits) from error
    memory_bytes = require_affordable(plan.nodes, named, limits)
    return check_topology(plan.build()), memory_bytes


def rebuilt(named: Named) -> Topology:
    """Return the topology once more, in a worker; its size was looked at before."""
    return parse_topology(named) if isinstance(named, str) else from_bytes(json.dumps(named).encode(), SENT)
