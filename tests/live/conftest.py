"""What live tests share."""

from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from chorale.runners.fabric.fabric import EmulatedFabric, fabrics, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.synth.topology.spec import parse_topology
from tests.conformance.live_kit import note_children
from tests.live.support import require_fabrics

Up = Callable[..., EmulatedFabric]


@pytest.fixture(autouse=True)
def _own_children() -> None:
    note_children()


@pytest.fixture
def up(request: pytest.FixtureRequest) -> Iterator[Up]:
    """Bring fabrics up, named `NAME` of the file unless said; whatever of them is still there at the end goes down."""
    made: list[str] = []

    def bring(spec: str, link_mbps: int | Fraction = 20, name: str = "", tested: bool = False) -> EmulatedFabric:
        made.append(name or request.module.NAME)
        return bring_up(parse_topology(spec), Fraction(link_mbps), made[-1], is_tested=tested)

    require_fabrics(f"{request.module.NAME}-try", "THE EMULATOR")
    yield bring
    for fabric in fabrics():
        if fabric.name in made:
            take_down(fabric)
