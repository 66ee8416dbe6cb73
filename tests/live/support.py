"""What live tests share: kits as parameters, what a machine must have, emulated fabrics."""

import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import pytest

from chorale.runners.api.base import Runner, library_result
from chorale.runners.fabric.fabric import EmulatedFabric, NamespaceHolder, find_fabric, require_wire, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.runners.oneccl.install import INSTALL, find_parts
from chorale.synth.errors import Unavailable
from chorale.synth.topology.spec import parse_topology
from tests.conformance import live_kit, runner_kit
from tests.conformance.runner_kit import RING, measured, request_of

needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None,
    reason="THE MPI RUNNER IS NOT TESTED ON THIS MACHINE: pip install 'chorale-collectives[mpi]'",
)


def _has_oneccl() -> bool:
    try:
        return find_parts() is not None
    except Unavailable:
        return False


needs_oneccl = pytest.mark.skipif(
    not _has_oneccl(), reason=f"THE ONECCL RUNNER IS NOT TESTED ON THIS MACHINE: its part is missing, run: {INSTALL}"
)

Check = Callable[[Callable[[], Any]], None]


def params(checks: Sequence[Check], quick: Collection[Check] | None = None) -> list[Any]:
    """Return parameters of `checks`: those that compare durations run alone; those not in a given `quick` are slow."""
    alone, slow = [pytest.mark.alone], [pytest.mark.slow]
    comparing = {*live_kit.COMPARING, *runner_kit.COMPARING}
    return [
        pytest.param(
            check,
            id=check.__name__,
            marks=(alone if check in comparing else []) + ([] if quick is None or check in quick else slow),
        )
        for check in checks
    ]


LINK_MBPS = 100


def require_fabrics(name: str, what: str) -> None:
    """Skip with the reason that a user would be told, where no fabric `name` with honest links can be made."""
    try:
        NamespaceHolder(name).close()
        require_wire()
    except Unavailable as error:
        pytest.skip(f"{what} IS NOT TESTED ON FABRICS ON THIS MACHINE: {error}")


@contextmanager
def fabric_of(name: str, what: str, spec: str = "ring:4") -> Iterator[EmulatedFabric]:
    """Bring a fabric up, or skip; it goes down at the end if it is still there."""
    require_fabrics(name, what)
    topology = parse_topology(spec)
    yield bring_up(topology, Fraction(LINK_MBPS), name, is_tested=False)
    if (fabric := find_fabric(topology.id, name)) is not None:
        take_down(fabric)


def turn_links_of_rank_0(fabric: EmulatedFabric, state: str) -> None:
    for device in ("to1", "to3"):
        subprocess.run([*fabric.command_prefix(0), "ip", "link", "set", device, state], check=True)


def takes_as_long_as_the_links_do(runner: Runner, library: str) -> None:
    """Measure six steps of a quarter of a MiB on a ring of four, by a program and by an algorithm of the library.

    An idle machine needs a few percent more than the links, and none less.
    """
    ideal_s = 6 * 2**18 * 8 / (LINK_MBPS * 1e6)
    outcome = measured(runner.submit(request_of(RING, size_bytes=2**20, library=(library,), timeout_s=60.0)))
    (own,), (other,) = outcome.results["program"], outcome.results[library_result(library)]
    assert ideal_s < own.min_s < 10 * ideal_s
    assert other.min_s > ideal_s
    assert (outcome.environment["network"], outcome.environment["link_mbps"]) == ("fabric", LINK_MBPS)
