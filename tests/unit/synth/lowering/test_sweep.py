"""Each method on at least ten networks, both MSCCL dialects, all placements, up to four channels and instances."""

import subprocess
import sys
from itertools import islice

import pytest

from tests.unit.synth.lowering.sweep import METHODS, Case, cases, digest

NAMES = tuple(dict.fromkeys(row[0] for row in METHODS))
SAMPLE = 149  # a prime, so that the sample meets all methods, networks and dialects
RARE = 499


def test_the_sweep_covers_what_it_says():
    found = list(cases())
    assert len(found) == len(set(found)) > 6000
    for method in NAMES:
        own = [case for case in found if case.method == method]
        assert len({case.spec for case in own}) >= 10
        assert len({(case.dialect, case.in_place) for case in own}) == 4
        for spec in {case.spec for case in own}:
            assert len({(case.channels, case.instances) for case in own if case.spec == spec}) == 16
    assert {case.collective for case in found} == {"allgather", "reduce_scatter", "allreduce"}


def test_a_sample_is_written_right():
    sample = list(islice(cases(), 0, None, SAMPLE))
    assert {case.method for case in sample} == set(NAMES)
    assert all([case.check() for case in sample])


def test_another_process_writes_the_same_bytes():
    """With other hashes, and other compiled kernels in its memory."""
    command = [sys.executable, "-m", "tests.unit.synth.lowering.sweep", str(RARE)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest(RARE)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("row", "name"),
    [(row, name) for row in METHODS for name in row[3]],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[1]}",
)
def test_every_program_is_written_right_or_refused_by_a_limit(row, name):
    own: list[Case] = list(cases(((*row[:3], (name,)),)))
    written = [case.check() for case in own]
    assert sum(written) > 0.9 * len(own)
