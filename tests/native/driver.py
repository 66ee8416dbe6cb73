"""Writes the files that the driver of native ranks reads, and builds it, also with sanitizers."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE, encode_rank
from chorale.synth.programs.program import QUEUE_DEPTH, Program
from tests.live.engine.cases import RankMemory, random_case
from tests.live.engine.programs import EIGHT, random_program
from tests.live.engine.reference import exact_values, expected_output, input_elements

SANITIZERS = {
    "address": ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "thread": ("-g", "-O1", "-fsanitize=thread"),
    "none": ("-g", "-O2"),
}
_TRANSPORTS = 5


def build_driver(sanitizer: str) -> Path:
    sources = (Path(__file__).parent / "engine_driver.cpp", *sorted(NATIVE.glob("*.cpp")))
    flags = (*SANITIZERS[sanitizer], "-pthread")
    return build_native(NativeTarget(f"engine_driver_{sanitizer}", sources, flags, (NATIVE,)))


def write_tasks(path: Path, seed: int, tasks: int, calls: int, networks: Sequence[str] = EIGHT) -> None:
    """Write so many jobs of a few programs and so many calls each, over each transport in turn."""
    draw = random.Random(seed)
    with path.open("wb") as stream:
        stream.write(as_numbers(tasks))
        for turn in range(tasks):
            stream.write(_task(draw, turn, calls, networks))


def as_numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def as_bytes(data: bytes) -> bytes:
    return as_numbers(len(data)) + data + bytes(-len(data) % 8)


def _task(draw: random.Random, turn: int, calls: int, networks: Sequence[str]) -> bytes:
    programs = [random_program(draw, networks) for _ in range(3)]
    ranks = len(programs[0].ranks)
    options = [(0, draw.choice((64, 1024, 16384))), (1, draw.choice((0, 100, 65536)))]
    parts = [as_numbers(ranks, turn % _TRANSPORTS, len(options)), *(as_numbers(*option) for option in options)]
    parts.append(as_numbers(len(programs)))
    for program in programs:
        depth = QUEUE_DEPTH[program.protocol]
        for part in program.ranks:
            words = encode_rank(program.collective, ranks, program.chunks, program.in_place, depth, part)
            parts.append(as_numbers(len(words)) + words.tobytes())
    parts.append(as_numbers(calls))
    for _ in range(calls):
        number = draw.randrange(len(programs))
        parts.append(_call(programs[number], number, draw))
    return b"".join(parts)


def _call(program: Program, number: int, draw: random.Random) -> bytes:
    case, ranks = random_case(program, draw, large=0.1), len(program.ranks)
    numbers = np.random.default_rng(case.seed)
    count = input_elements(program.collective, case.elements, ranks)
    inputs = [exact_values(case.type, case.operation, count, numbers) for _ in range(ranks)]
    parts = [as_numbers(number, case.elements, case.type, case.operation, case.parts, case.shift_bytes)]
    for rank in range(ranks):
        memory = RankMemory(program, rank, case, inputs[rank])
        size = memory.input.dtype.itemsize
        room = max(memory.inputs, memory.outputs) if case.in_place else memory.inputs
        expected = expected_output(program.collective, inputs, rank, case.type, case.operation)
        places = (memory.input_at * size, memory.output_at * size, room * size, memory.outputs * size)
        parts.append(as_numbers(int(case.in_place), *places, int(expected is not None)))
        parts.append(as_bytes(inputs[rank].tobytes()))
        parts.append(as_bytes(b"" if expected is None else expected.tobytes()))
    return b"".join(parts)
