"""What a job will take, told before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from synth.errors import InvalidInput
from synth.topology.registry import TooLarge

BASE_BYTES = 340 * 2**20
"""A worker with everything imported and its kernels loaded."""

BYTES_PER_PAIR = 52
"""Per pair of nodes: columns of transfers, their sorted copies and the replay. Measured peaks are at most that:
hypercube:12 by bfb 33, 4,096 ranks of a switched fabric by forest 52."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one job may ask for."""

    nodes: int = 16_384
    memory_bytes: int = 8 * _GIB


def memory_estimate(nodes: int) -> int:
    """Return an upper estimate of the peak memory of a synthesis on `nodes` nodes, in bytes."""
    return BASE_BYTES + BYTES_PER_PAIR * nodes**2


def require_affordable(nodes: int, what: str, limits: Limits) -> int:
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


def refused(error: TooLarge, limits: Limits) -> InvalidInput:
    """Return the refusal of a network that is beyond every limit, with the estimate."""
    estimate = _text(memory_estimate(error.nodes))
    rule = f"a job must have at most {limits.nodes} nodes"
    return InvalidInput(rule, f"{error.value}: {error.nodes} nodes, about {estimate}", "choose a smaller network")


def _text(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB"
