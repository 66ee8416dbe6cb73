"""Random plans and those written by hand, as the driver of plans reads them, with inputs and results of their calls.

`python -m tests.native.plan_tasks SANITIZER SEED PLANS MUTANTS` runs so many random plans, each with so many mutants,
in one process that a sanitizer watches. The driver names a plan at fault by its number, counted from 0.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chorale.runners.api.programs import equal_parts
from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE, DataType, ReduceOp
from chorale.runners.plans.rank_plans import NATIVE, PlanBuffers, RankRegion, WordsHead, encode_plan
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.mscclpp_text import parse_plan
from tests.conformance.plan_cases import CASES, document_of
from tests.live.engine.programs import NAMES, random_program
from tests.live.engine.reference import DTYPES, exact_values, expected_output, input_elements
from tests.native.driver import SANITIZERS, as_bytes, as_numbers

NETWORKS = ("complete:2", "complete:3", "complete:4", "ring:4", "ring:3", "hypercube:2", "uniring:1,3", "switch:4,10")
TYPES = tuple(DTYPES)[:8]
"""What kernels add, from float32 to bytes."""
AWAY = -1
"""In place of the number of threads: a rank that takes no part in a call."""
STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=512:"
    "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def plan_driver(sanitizer: str) -> Path:
    """Return the driver, with all of the executor in it, which checks offsets again as plans run."""
    sources = (Path(__file__).parent / "plan_driver.cpp", *sorted(NATIVE.glob("*.cpp")))
    flags = (*SANITIZERS[sanitizer], "-pthread", "-DCHORALE_CHECKS")
    return build_native(NativeTarget(f"plan_driver_{sanitizer}", sources, flags, (NATIVE, ENGINE)))


def run_plans(sanitizer: str, tasks: Iterable[bytes], seed: int = 1) -> subprocess.CompletedProcess[str]:
    """Give tasks to one process of the driver, each when it is made."""
    # Sanitizers clear the stack of each of its many threads.
    command = ["sh", "-c", f"ulimit -s 1024; exec {plan_driver(sanitizer)} /dev/stdin {seed}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | STRICT, **pipes) as process:  # type: ignore[call-overload]
        with suppress(BrokenPipeError):  # the driver has ended early; its output says which fault it found
            for task in tasks:
                process.stdin.write(task)
            process.stdin.close()
        process.stdin = None
        out, err = (text.decode() for text in process.communicate())
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call on vectors of `units` times the smallest vector.

    threads: threads for each block, by rank; is_late: whether all ranks are late, and say what they wait for
    """

    threads: Sequence[int]
    units: int = 1
    limit_s: float = 60.0
    is_late: bool = False


def task_of(
    plan: ExecutionPlan,
    calls: Sequence[PlannedCall],
    mutants: int = 0,
    type_: DataType = DataType.FLOAT32,
    operation: ReduceOp = ReduceOp.SUM,
    seed: int = 0,
) -> bytes:
    """Return the words of a plan and of its calls. As in jobs, scratch lies after the data of the largest call."""
    ranks, shape, size = len(plan.ranks), PlanBuffers.of(plan), DTYPES[type_].itemsize
    words = [encode_plan(plan, rank) for rank in range(ranks)]
    unit, largest = equal_parts(plan, size), max(call.units for call in calls)
    piece = unit * size // shape.pieces
    region = RankRegion.of(WordsHead.of(words[0]), ranks, shape.cells, shape.packets, piece * largest)
    scratch = region.data + max(each.scratch_base for each in shape.layouts) * piece * largest * shape.pieces_of_a_chunk
    parts = [_words([ranks, region.bytes, region.half_bytes, type_, operation, seed % 2]), *map(_words, words)]
    parts.append(as_numbers(len(calls)))
    numbers = np.random.default_rng(seed)
    for call in calls:
        chunk = piece * call.units * shape.pieces_of_a_chunk
        ends = [[region.data + base * chunk for base in (at.input_base, at.output_base)] for at in shape.layouts]
        offsets = [offset for pair in ends for offset in (*pair, scratch, region.packets, 0)]
        parts.append(as_numbers(round(call.limit_s * 1e9), piece * call.units, call.is_late))
        parts += _words(call.threads), _words(offsets)
        count = input_elements(plan.collective, unit * call.units, ranks)
        inputs = [exact_values(type_, operation, count, numbers) for _ in range(ranks)]
        for rank in range(ranks):
            result = expected_output(plan.collective, inputs, rank, type_, operation)
            texts = inputs[rank].tobytes(), b"" if result is None else result.tobytes()
            parts += as_numbers(*ends[rank]), *map(as_bytes, texts)
    return b"".join([*parts, as_numbers(mutants)])


def _words(values: Sequence[int]) -> bytes:
    return as_numbers(len(values), *values)


def case_of(name: str, wrong: str | None = None) -> ExecutionPlan:
    return parse_plan(json.dumps(document_of(name, wrong)).encode())


def case_tasks() -> Iterator[bytes]:
    """Yield each plan that was written by hand, run in several ways; then one of its ranks stays away."""
    for name in CASES:
        for threads in (0, 1, 3):
            calls = [PlannedCall([threads] * 2, units) for units in (64, 64, 1, 64)]
            yield task_of(case_of(name), [*calls, PlannedCall([threads, AWAY], 64, 0.2, is_late=True)])


def random_tasks(seed: int, plans: int, mutants: int) -> Iterator[bytes]:
    """Yield plans of random schedules and lowerings, and some that were written by hand; then a rank stays away."""
    for number in range(plans):
        draw = random.Random(f"{seed} {number}")
        plan, units = random_plan(draw), draw.choice((1, 2, 9))
        ranks, few = range(len(plan.ranks)), draw.choice((1, 1, 1, 1, 2, 3))
        threads = draw.choice(([0 for _ in ranks], [few for _ in ranks], [draw.randrange(3) for _ in ranks]))
        calls = [PlannedCall(threads, each) for each in draw.choice(((units,) * 3, (units, 3, units)))]
        absent = draw.choice(ranks)
        others = [AWAY if rank == absent else threads[rank] for rank in ranks]
        operation = draw.choice((ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD))
        calls.append(PlannedCall(others, units, 0.002))
        yield task_of(plan, calls, mutants, draw.choice(TYPES), operation, draw.randrange(2**32))


def random_plan(draw: random.Random) -> ExecutionPlan:
    if draw.random() < 0.1:
        return case_of(draw.choice(list(CASES)))
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
        vector_bytes=draw.choice((8, 16)),
    )


def main(sanitizer: str, seed: str, plans: str, mutants: str) -> int:
    """Run random plans and print what the driver found."""
    plan_driver(sanitizer)
    start_s = time.monotonic()
    done = run_plans(sanitizer, random_tasks(int(seed), int(plans), int(mutants)), int(seed))
    sys.stdout.write(f"{done.stdout}{time.monotonic() - start_s:.0f} s, {len(done.stderr)} bytes of findings\n")
    sys.stderr.write(done.stderr)
    return done.returncode or bool(done.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
