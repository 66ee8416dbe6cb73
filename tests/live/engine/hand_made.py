"""Small programs written by hand, and one call of them."""

import numpy as np

from chorale.runners.engine.library import DataType, ReduceOp, Work
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Program
from tests.live.engine.job import Job
from tests.unit.synth.lowering.programs import block, program, step


def one_way(messages: int = 1, protocol: str = "Simple") -> Program:
    """Rank 0 sends all it has to rank 1, in so many messages of a chunk."""
    steps = range(messages)
    sender = block(1, None, *(step("s", f"i{chunk}") for chunk in steps))
    receiver = block(None, 0, *(step("r", f"i{chunk}") for chunk in steps))
    return program(CollectiveName.BROADCAST, messages, [sender], [receiver], protocol=protocol)


def exchange(protocol: str = "Simple") -> Program:
    """Two ranks add up what they have: both send, both receive."""
    return program(
        CollectiveName.ALLREDUCE,
        1,
        *([block(peer, None, step("s", "i0", "s0")), block(None, peer, step("rrc", "i0", "i0", 1, [(0, 0)]))]
          for peer in (1, 0)),
        protocol=protocol,
    )  # fmt: skip


def around_a_corner() -> Program:
    """Rank 0 sends to 1, then to 2, which sends to 1; and 1 wants what 2 sends before what 0 sent first."""
    first = [block(1, None, step("s", "i0")), block(2, None, step("s", "i0", waits=[(0, 0)]))]
    second = [block(None, 2, step("r", "s0")), block(None, 0, step("r", "i0", waits=[(0, 0)]))]
    third = [block(None, 0, step("r", "i0")), block(1, None, step("s", "i0", waits=[(0, 0)]))]
    return program(CollectiveName.BROADCAST, 1, first, second, third, scratch=1)


def broadcast_once(job: Job, number: int, elements: int, limit_s: float = 10.0) -> None:
    """Let rank 0 send bytes to the others, in place, and see that they come."""
    rng = np.random.default_rng(elements)
    arrays = [rng.integers(0, 256, elements, dtype=np.uint8) for _ in job.engines]
    addresses = [int(array.ctypes.data) for array in arrays]
    job.run([Work(number, at, at, elements, DataType.UINT8, ReduceOp.SUM, 1, limit_s) for at in addresses])
    assert all((arrays[0] == array).all() for array in arrays)
