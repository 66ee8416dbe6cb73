"""Plans on ranks that are threads of this process: random plans, mutants of their words, and every check of results.

`python -m tests.native.plan_ranks LIBRARY SEED PLANS MUTANTS` does that in a process that sanitizers watch.
"""

import json
import random
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.api.programs import equal_parts
from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.engine.library import DataType, ReduceOp
from chorale.runners.execution.rank_part import DataLayout, RankMemory
from chorale.runners.plans.encoding import WordsHead, encode_plan
from chorale.runners.plans.rank_plans import (
    NATIVE,
    Arithmetic,
    BoundPlan,
    PlanBuffers,
    PlanError,
    PlanExecutor,
    RankRegion,
    window_bases,
)
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import CASES, document_of
from tests.live.engine.programs import NAMES, random_program

NETWORKS = ("complete:2", "complete:3", "complete:4", "ring:4", "ring:3", "hypercube:2", "uniring:1,3", "switch:4,10")


class PlanRanks:
    """All ranks of a plan, each with an executor and memory of its own, which sanitizers guard."""

    def __init__(self, plan: ExecutionPlan, library: Path | None = None) -> None:
        self.plan, self.ranks = plan, len(plan.ranks)
        self._shape = PlanBuffers.of(plan)
        self.words = [encode_plan(plan, rank) for rank in range(self.ranks)]
        self.executors = [PlanExecutor(library) for _ in range(self.ranks)]
        for rank, executor in enumerate(self.executors):
            executor.check(self.words[rank], rank, self.ranks)
        self.bound: list[BoundPlan] = []

    def bind(self, elements: int, dtype: str, operation: ReduceOp = ReduceOp.SUM, keeps_wide: bool = False) -> None:
        """Give it memory for vectors of so many elements, which its pieces divide."""
        type_ = ELEMENT_TYPES[dtype].dtype
        piece_bytes = elements // self._shape.pieces * type_.itemsize
        head = WordsHead.of(self.words[0])
        region = RankRegion.of(head, self.ranks, self._shape.cells, self._shape.packets, piece_bytes)
        self.memory = [np.zeros(region.bytes // 16 + 1, np.complex128).view(np.uint8) for _ in range(self.ranks)]
        bases = window_bases(self._shape, [each.ctypes.data for each in self.memory], region, piece_bytes)
        arithmetic = Arithmetic(DataType[dtype.upper()], operation, keeps_wide)
        self.bound = [BoundPlan(words, bases, piece_bytes, region.half_bytes, arithmetic) for words in self.words]
        self.buffers = []
        for layout, memory in zip(self._shape.layouts, self.memory, strict=True):
            cells, chunk = memory[region.data :], piece_bytes * self._shape.pieces_of_a_chunk
            size = layout.cells * chunk
            self.buffers.append(
                [cells[base * chunk : size].view(type_) for base in (layout.input_base, layout.output_base)]
            )

    def call(
        self, threads: Sequence[int], limit_s: float = 60.0, who: Sequence[int] | None = None
    ) -> list[PlanError | None]:
        """Have all ranks, or only `who`, take part in a call; return what went wrong for each."""
        failures: list[PlanError | None] = [None] * self.ranks

        def take_part(rank: int) -> None:
            try:
                self.executors[rank].execute(self.bound[rank], limit_s, 0, threads[rank])
            except PlanError as error:
                failures[rank] = error

        running = [threading.Thread(target=take_part, args=(rank,)) for rank in who or range(self.ranks)]
        for each in running:
            each.start()
        for each in running:
            each.join()
        return failures

    def complaints(self, elements: int, dtype: str, threads: Sequence[int], calls: int = 3) -> Iterator[str]:
        """Yield what is wrong with the results of some calls with other data each."""
        layout = DataLayout(self.plan.collective, self.ranks, self.plan.chunks, self.plan.in_place)
        for run in range(calls):
            pattern = DataPattern(self.ranks, run, 7, ELEMENT_TYPES[dtype].exact_limit)
            data = [
                RankMemory(layout, rank, elements, dtype, pattern, tuple(self.buffers[rank]))
                for rank in range(self.ranks)
            ]
            failures = self.call(threads)
            yield from (f"{error} {error.blocked}" for error in failures if error is not None)
            yield from filter(None, (each.mismatch() for each in data))

    def close(self) -> None:
        for executor in self.executors:
            executor.close()


def random_plan(draw: random.Random) -> ExecutionPlan:
    """Return a plan of a random schedule and lowering, or a case that was written by hand."""
    if draw.random() < 0.2:
        return parse_plan(json.dumps(document_of(draw.choice(list(CASES)))).encode())
    while True:
        try:
            return plan_of(random_program(draw, NETWORKS, NAMES, _options))
        except InvalidInput:
            continue


def _options(draw: random.Random) -> LoweringOptions:
    group, pipeline = draw.choice(((1, 0), (1, 0), (2, 0), (3, 0), (1, 64)))
    return LoweringOptions(
        "mscclpp-json",
        instances=draw.choice((1, 1, 2)),
        protocol=draw.choice(("Simple", "LL")),
        in_place=draw.random() < 0.5,
        fuse=draw.random() < 0.5,
        chunks=draw.choice((None, 1, 2)),
        reads=draw.random() < 0.3,
        block_group=group,
        pipeline_bytes=pipeline,
        ranks_per_box=draw.choice((None, None, 2)),
    )


def check_random_plan(draw: random.Random, library: Path | None, mutants: int) -> int:
    """Run a random plan in several ways; return how many of its mutants were taken for plans."""
    plan = random_plan(draw)
    ranks = PlanRanks(plan, library)
    dtype = draw.choice(("float32", "int32", "float16", "bfloat16", "float64"))
    elements = equal_parts(plan, ELEMENT_TYPES[dtype].dtype.itemsize) * draw.choice((1, 2, 9))
    for threads in ([0] * ranks.ranks, [draw.choice((1, 1, 2, 3))] * ranks.ranks, _several(draw, ranks.ranks)):
        ranks.bind(elements, dtype)
        found = list(ranks.complaints(elements, dtype, threads))
        assert not found, (plan.name, plan.collective, plan.origin, threads, found)
    taken = 0
    for _ in range(mutants):
        taken += _mutant(draw, ranks)
    ranks.close()
    return taken


def _several(draw: random.Random, ranks: int) -> list[int]:
    return [draw.randrange(3) for _ in range(ranks)]


def _mutant(draw: random.Random, ranks: PlanRanks) -> bool:
    """Change words of a rank; whatever the check lets pass may be executed: it ends, and stays in its memory.

    The head stays as it is, because memory is as long as it says.
    """
    rank = draw.randrange(ranks.ranks)
    words, head = array("q", ranks.words[rank]), 8 + 4 * ranks.ranks
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(head, len(words))
        words[at] = draw.choice((0, 1, -1, 2**40, words[at] + 1, words[at] - 1, draw.choice(words)))
    if draw.random() < 0.2:
        words = words[: draw.randrange(head, len(words))]
    try:
        ranks.executors[rank].check(words, rank, ranks.ranks)
    except PlanError:
        return False
    sound = ranks.bound[rank]
    changed = BoundPlan(
        words, sound.bases.tolist(), int(sound.binding[5]), int(sound.binding[6]), Arithmetic(DataType.INT32)
    )
    ranks.bound[rank] = changed
    ranks.call([draw.randrange(3) for _ in range(ranks.ranks)], limit_s=0.05)
    ranks.bound[rank] = sound
    for each in ranks.bound:
        each.state[:] = WordsHead.of(each.words.tolist()).state()
        each.broken[:] = each.record[:] = 0
    return True


def library_for(sanitizer: str, flags: Sequence[str]) -> Path:
    """Return the executor, built with `flags`; in it offsets are checked again as plans run."""
    sources = tuple(sorted(NATIVE.glob("*.cpp")))
    options = (*flags, "-shared", "-fPIC", "-pthread", "-DCHORALE_CHECKS")
    return build_native(NativeTarget(f"libchorale_plans_{sanitizer}.so", sources, options, (ENGINE,)))


def check_case(name: str, library: Path | None) -> None:
    """Run a case that was written by hand in several ways; then one of its ranks stays away, and the other says so."""
    ranks = PlanRanks(parse_plan(json.dumps(document_of(name)).encode()), library)
    for threads in (0, 1, 3):
        ranks.bind(4096, "float32")
        found = list(ranks.complaints(4096, "float32", [threads] * 2))
        assert not found, (name, threads, found)
        (late, _) = ranks.call([threads, threads], limit_s=0.2, who=(0,))
        assert late is not None, (name, threads)
        assert late.is_late, (name, threads, str(late))
        assert "waits for" in late.blocked, (name, threads, late.blocked)
    ranks.close()


def main(library: str, seed: str, plans: str, mutants: str) -> None:
    draw = random.Random(int(seed))
    for name in CASES:
        check_case(name, Path(library))
    taken = sum(check_random_plan(draw, Path(library), int(mutants)) for _ in range(int(plans)))
    sys.stdout.write(f"{plans} plans, {taken} mutants taken\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
