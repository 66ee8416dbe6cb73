"""Each method on several networks, both MSCCL dialects, all placements, up to four channels and instances."""

import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import islice, product

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.targets.lift import read_program
from chorale.synth.targets.registry import target_named
from chorale.synth.verify.verified import VerifiedSchedule
from tests.synthesis import synthesized

DIRECT = ("ring:5", "torus:4x2", "hypercube:3", "mesh:2x3", "bipartite:3", "kautz:2,1", "diamond", "genkautz:2,5")
ALL = ("torus:3x3", "hypercube:3", "kautz:2,1", "dbt:7", "a100:1", "mi250half:1", "hxmesh:2,2x2", "dragonfly:2,1,1")
CYCLIC = ("ring:4", "ring:7", "torus:3x3", "torus:4x4", "kautz:2,1", "diamond", "hxmesh:2,2x2")
NAMES = ("allgather", "reduce_scatter", "allreduce")
Row = tuple[str, int | None, tuple[str, ...], tuple[str, ...]]
"""Method, k of forest, networks, collectives."""
ROWS: tuple[Row, ...] = (
    ("bfb", None, DIRECT, NAMES),
    *(("forest", k, ALL, NAMES) for k in (1, 2, 3)),
    *((name, None, ALL, NAMES) for name in ("swing", "ring", "biring", "bucket", "traditional-torus", "rabenseifner")),
    ("hamiltonian-ring", None, CYCLIC, NAMES),
    *((name, None, ALL, NAMES[2:]) for name in ("swing-latency", "recursive-doubling", "double-binary-tree", "blink")),
)
Case = tuple[tuple[str, int | None, str, str], LoweringOptions]
SAMPLE, RARE = 127, 499  # primes, so that samples meet all methods, networks and dialects


def cases(rows: tuple[Row, ...] = ROWS) -> Iterator[Case]:
    """Return the programs of `rows`; each schedule meets every pair of a number of channels and one of instances."""
    places = list(enumerate(product(("msccl-xml", "msccl-executor-xml"), (True, False))))
    for method, k, specs, names in rows:
        for spec, name, (turn, (target, in_place)), count in product(specs, names, places, range(4)):
            options = LoweringOptions(target, 1 + count, 1 + (count + turn) % 4, in_place=in_place)
            yield (method, k, spec, name), options


@lru_cache(maxsize=8)
def schedule_of(method: str, k: int | None, spec: str, name: str) -> VerifiedSchedule:
    return synthesized(method, spec, name, k=k)


def text_of(case: Case) -> str | None:
    """Return the text of a program; None if a limit refuses it."""
    try:
        return target_named(case[1].target).emit(lower(schedule_of(*case[0]), case[1]))
    except InvalidInput as refusal:
        assert "above the limit" in str(refusal)  # noqa: PT017
        return None


def is_written_right(case: Case) -> bool:
    """Check what is read back; return False if limits refuse the program."""
    text = text_of(case)
    if text is None:
        return False
    reading = read_program(text.encode(), schedule_of(*case[0]).schedule.topology)
    assert (reading.verdict.violations, reading.text) == ((), text), case
    assert case[1].target in reading.fitting_targets
    return True


def digest(every: int) -> str:
    """Return a digest of the texts of one out of `every` programs."""
    found = sha256()
    for case in islice(cases(), 0, None, every):
        found.update((text_of(case) or "refused").encode())
    return found.hexdigest()


def test_a_sample_is_written_right():
    sample = list(islice(cases(), 0, None, SAMPLE))
    assert {method for (method, *_), _ in sample} == {row[0] for row in ROWS}
    assert all([is_written_right(case) for case in sample])


def test_another_process_writes_the_same_bytes():
    """With other hashes."""
    command = [sys.executable, "-c", f"from {__name__} import digest; print(digest({RARE}))"]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest(RARE)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_program_is_written_right_or_refused_by_a_limit(row):
    written = [is_written_right(case) for case in cases((row,))]
    assert sum(written) > 0.9 * len(written)
