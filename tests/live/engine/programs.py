"""Programs of every method, lowered in many ways, for a job of a few ranks."""

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import METHODS, synthesize
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

EIGHT = (
    "ring:8", "torus:4x2", "hypercube:3", "complete:8", "mesh:2x4", "bipartite:4", "circulant:8,1,3", "dbt:8",
    "genkautz:2,8", "uniring:1,8", "biring:2,8", "switch:8,10", "a100:1", "twisted-torus:2x4,1",
    "degree(ring:4;2)", "line(genkautz:2,4)",
)  # fmt: skip
"""Networks of eight ranks."""
ALLTOALL_METHOD = "alltoall"
NAMES = (*(name for name in METHODS if name != "in-network"), ALLTOALL_METHOD)
"""Without schedules whose switches add: the engine has no switches; plans run them, in tests/live/test_plans.py."""
TARGETS = ("oneccl-xml", "msccl-xml", "msccl-executor-xml")


def random_program(
    draw: random.Random,
    networks: Sequence[str] = EIGHT,
    methods: Sequence[str] = NAMES,
    options: Callable[[random.Random], LoweringOptions] | None = None,
) -> Program:
    """Return a program of a random method, collective and lowering. Draws again where one is refused."""
    while True:
        spec, method = draw.choice(networks), draw.choice(methods)
        names = (CollectiveName.ALLTOALL,) if method == ALLTOALL_METHOD else METHODS[method].collectives
        name = draw.choice(names)
        try:
            schedule = _schedule(spec, method, name, draw.randrange(2))
            return _lowered(schedule, (options or _random_options)(draw))
        except InvalidInput:
            continue


@lru_cache(maxsize=1024)
def _attempt(spec: str, method: str, name: CollectiveName, root: int) -> VerifiedSchedule | str:
    topology = parse_topology(spec)
    rooted = name in (CollectiveName.BROADCAST, CollectiveName.REDUCE)
    try:
        if method == ALLTOALL_METHOD:
            return verify(alltoall_schedule(topology, 2))
        return synthesize(method, topology, Collective(name, root if rooted else None), None, SerialExecutor())
    except InvalidInput as refusal:
        return str(refusal)


def _schedule(spec: str, method: str, name: CollectiveName, turn: int) -> VerifiedSchedule:
    schedule = _attempt(spec, method, name, turn * 5 % 7)
    if isinstance(schedule, str):
        raise InvalidInput("a method must make the collective on the network", schedule, "draw again")
    return schedule


def _random_options(draw: random.Random) -> LoweringOptions:
    return LoweringOptions(
        draw.choice(TARGETS),
        channels=draw.choice((1, 1, 2, 3)),
        instances=draw.choice((1, 1, 2, 3)),
        protocol=draw.choice(("Simple", "LL", "LL128")),
        in_place=draw.random() < 0.5,
        fuse=draw.random() < 0.5,
        chunks=draw.choice((None, None, 1, 2, 3, 5)),
    )


@lru_cache(maxsize=2048)
def _lowered(schedule: VerifiedSchedule, options: LoweringOptions) -> Program:
    return lower(schedule, options)
