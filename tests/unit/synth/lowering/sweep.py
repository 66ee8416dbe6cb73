"""Every method on many networks as programs of both MSCCL runtimes, in all placements, channels and instances.

Run as a script with a number it prints a digest of all texts of one out of so many programs, for comparing processes.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import islice, product

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.targets.lift import read_program
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule

DIRECT = (
    "ring:5", "torus:3x3", "torus:4x2", "hypercube:3", "mesh:2x3", "bipartite:3", "complete:4", "circulant:7,1,2",
    "kautz:2,1", "diamond", "genkautz:2,5",
)  # fmt: skip
ALL = (
    "ring:6", "torus:3x3", "hypercube:3", "mesh:2x3", "complete:5", "kautz:2,1", "dbt:7", "a100:1", "mi250half:1",
    "hxmesh:2,2x2", "dragonfly:2,1,1", "switch:4,10",
)  # fmt: skip
CYCLIC = (
    "ring:4", "ring:5", "ring:7", "ring:8", "torus:3x3", "ring:6", "torus:4x4", "kautz:2,1", "diamond",
    "hxmesh:2,2x2",
)  # fmt: skip
PARTS = ("allgather", "reduce_scatter", "allreduce")
WHOLE = ("allreduce",)
Row = tuple[str, int | None, tuple[str, ...], tuple[str, ...]]
"""Method, k of forest, networks, collectives."""
METHODS: tuple[Row, ...] = (
    ("bfb", None, DIRECT, PARTS),
    ("forest", 1, ALL, PARTS),
    ("forest", 2, ALL, PARTS),
    ("forest", 3, ALL, PARTS),
    ("swing", None, ALL, PARTS),
    ("swing-latency", None, ALL, WHOLE),
    ("ring", None, ALL, PARTS),
    ("biring", None, ALL, PARTS),
    ("hamiltonian-ring", None, CYCLIC, PARTS),
    ("bucket", None, ALL, PARTS),
    ("traditional-torus", None, ALL, PARTS),
    ("rabenseifner", None, ALL, PARTS),
    ("recursive-doubling", None, ALL, WHOLE),
    ("double-binary-tree", None, ALL, WHOLE),
    ("blink", None, ALL, WHOLE),
)
DIALECTS = ("msccl-xml", "msccl-executor-xml")
MOST = 4  # channels, and instances


@dataclass(frozen=True, slots=True)
class Case:
    """One program of the sweep."""

    method: str
    k: int | None
    spec: str
    collective: str
    dialect: str
    in_place: bool
    channels: int
    instances: int

    def text(self) -> str | None:
        """Return the text; None where limits refuse the program, naming limit and what fits or helps."""
        options = LoweringOptions(self.dialect, self.channels, self.instances, in_place=self.in_place)
        try:
            return target_named(self.dialect).emit(lower(self.schedule(), options))
        except InvalidInput as refusal:
            if "above the limit" not in str(refusal):
                raise
            return None

    def schedule(self) -> VerifiedSchedule:
        """Return the schedule that the program executes."""
        return _schedule(self.method, self.k, self.spec, self.collective)

    def check(self) -> bool:
        """Lower, read back and check the program on its network; return whether limits let it be written."""
        text = self.text()
        if text is None:
            return False
        reading = read_program(text.encode(), self.schedule().schedule.topology)
        assert reading.verdict.violations == (), self
        assert reading.text == text, self
        assert self.dialect in reading.fitting_targets, self
        return True


def cases(rows: Sequence[Row] = METHODS) -> Iterator[Case]:
    """Return the programs of `rows`, those of one schedule together.

    Each collective on each network is written for both dialects in both placements with every number of channels and
    every number of instances; over its dialects and placements it meets every pair of the two.
    """
    for method, k, specs, names in rows:
        for spec, name in product(specs, names):
            for turn, (dialect, in_place) in enumerate(product(DIALECTS, (True, False))):
                for count in range(MOST):
                    yield Case(method, k, spec, name, dialect, in_place, 1 + count, 1 + (count + turn) % MOST)


@lru_cache(maxsize=8)
def _schedule(method: str, k: int | None, spec: str, collective: str) -> VerifiedSchedule:
    asked = Collective(CollectiveName(collective))
    return synthesize(method, parse_topology(spec), asked, Options(k=k), SerialExecutor())


def digest(every: int) -> str:
    """Return a digest of the texts of one out of `every` programs."""
    found = sha256()
    for case in islice(cases(), 0, None, every):
        found.update((case.text() or "refused").encode())
    return found.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(digest(int(sys.argv[1])))
