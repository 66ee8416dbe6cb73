"""Every spec of tests/data/refused-specs.txt is refused with the message below it."""

from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology

LINES = [
    line.strip()
    for line in (Path(__file__).parents[3] / "data" / "refused-specs.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("spec", "error"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_a_wrong_spec_is_refused_with_its_message(spec: str, error: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    assert str(caught.value) == error
