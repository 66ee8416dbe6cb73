"""Every spec of tests/data/refused-specs.txt is refused with the message below it, at once and in one line."""

import time
import tracemalloc
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology

LINES = [
    line.strip()
    for line in (Path(__file__).parents[3] / "data" / "refused-specs.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
CASES = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.mark.parametrize(("spec", "error"), CASES)
def test_a_wrong_spec_is_refused_with_its_message(spec: str, error: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    assert str(caught.value) == error
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", [spec for spec, error in CASES if error.startswith("a topology must have at most")])
def test_absurd_sizes_are_refused_at_once_and_without_memory(spec: str) -> None:
    tracemalloc.start()
    start_s = time.process_time()
    with pytest.raises(InvalidInput):
        parse_topology(spec)
    elapsed_s, memory_bytes = time.process_time() - start_s, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed_s < 0.5
    assert memory_bytes < 2**20


def test_an_empty_spec_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r'a family or function is missing in the spec ""; write family'):
        parse_topology("")
