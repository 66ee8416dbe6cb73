"""Emulated fabrics for tests of the runners that run on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest

from chorale.runners.api.base import Outcome, Runner, RunRequest
from chorale.runners.fabric.fabric import (
    EmulatedFabric,
    NamespaceHolder,
    bring_up,
    find_fabric,
    require_wire,
    take_down,
)
from chorale.synth.errors import Unavailable
from chorale.synth.topology.spec import parse_topology

LINK_MBPS = 100


def require_fabrics(name: str, what: str) -> None:
    """Skip with the reason that a user would be told, where no fabric `name` with honest links can be made."""
    try:
        NamespaceHolder(name).close()
        require_wire()
    except Unavailable as error:
        pytest.skip(f"{what} IS NOT TESTED ON FABRICS ON THIS MACHINE: {error}")


@contextmanager
def ring_of_four(name: str) -> Iterator[EmulatedFabric]:
    """Bring a ring up; it goes down at the end if it is still there."""
    topology = parse_topology("ring:4")
    yield bring_up(topology, Fraction(LINK_MBPS), name)
    if (fabric := find_fabric(topology.id, name)) is not None:
        take_down(fabric)


class OnAnyFabric:
    """Implements `Runner` by one that uses fabric `fabric`: brings that of each request's topology up, and down."""

    def __init__(self, runner: Runner, fabric: str) -> None:
        self.name = runner.name
        self._runner = runner
        self._fabric = fabric

    def submit(self, request: RunRequest) -> Outcome:
        fabric = bring_up(request.topology, Fraction(LINK_MBPS), self._fabric)
        try:
            return self._runner.submit(request)
        finally:
            take_down(fabric)

    def library(self, collective: str) -> tuple[str, ...]:
        return self._runner.library(collective)

    def close(self) -> None:
        self._runner.close()
