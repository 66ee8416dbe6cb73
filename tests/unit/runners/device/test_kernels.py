"""The kernel compiles for every generation of GPUs, without one, to the instructions that it needs."""

import re
from functools import cache

import pytest

pytest.importorskip("torch", reason="THE DEVICE RUNNER IS NOT TESTED: pip install torch")


from chorale.runners.device import memory
from chorale.runners.device.memory import KernelKind, compile_kernel
from chorale.runners.engine.library import DataType, ReduceOp
from chorale.runners.plans.rank_plans import Arithmetic
from chorale.synth.errors import Unavailable

try:
    memory._nvrtc()
except Unavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

ORDERED = ("ld.acquire.sys.global.u64", "red.release.sys.global.add.u64")
"""Signals: a wait sees all that was written before the signal."""
PACKETS = ("ld.volatile.global.v2.u64", "st.volatile.global.v2.u64")
VECTORS = (r"ld\.(global\.)?v2\.[bu]64", r"st\.(global\.)?v2\.[bu]64")


@cache
def compiled(generation: int, type_: DataType, operation: ReduceOp = ReduceOp.SUM, checks: bool = False):
    return compile_kernel(KernelKind(Arithmetic(type_, operation), generation, checks))


def has(kernel: tuple[bytes, str], *instructions: str) -> list[bool]:
    return [instruction in kernel[1] for instruction in instructions]


@pytest.mark.parametrize("generation", [80, 90, 100])
def test_it_compiles_for_each_generation(generation: int) -> None:
    kernel = compiled(generation, DataType.BFLOAT16)
    assert kernel[0][:4] == b"\x7fELF"
    assert f".target sm_{generation}" in kernel[1]
    assert ".entry chorale_plan" in kernel[1]
    assert all(has(kernel, *ORDERED, *PACKETS, "barrier.cta.red.or.pred"))
    assert all(re.search(pattern, kernel[1]) for pattern in VECTORS)
    adds = "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2"
    assert has(kernel, adds, "multimem.st.relaxed.sys.global.v4.f32") == [generation >= 90] * 2


@pytest.mark.parametrize(
    ("type_", "operation", "instruction"),
    [
        (DataType.FLOAT32, ReduceOp.SUM, "multimem.ld_reduce.relaxed.sys.global.add.v4.f32"),
        (DataType.FLOAT16, ReduceOp.SUM, "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2"),
        (DataType.FLOAT64, ReduceOp.PROD, "mul.f64"),
        (DataType.UINT8, ReduceOp.MAX, "setp"),
    ],
)
def test_types_and_operations(type_: DataType, operation: ReduceOp, instruction: str) -> None:
    kernel = compiled(90, type_, operation)
    assert has(kernel, instruction) == [True]
    if type_ not in (DataType.FLOAT32, DataType.FLOAT16):
        assert has(kernel, "multimem.ld_reduce") == [False]  # a switch would add something else


def test_the_checking_build_has_more_to_do() -> None:
    plain, checking = compiled(90, DataType.FLOAT32), compiled(90, DataType.FLOAT32, checks=True)
    assert checking[1].count("setp") > plain[1].count("setp")


def test_a_gpu_that_nvrtc_does_not_know_is_refused() -> None:
    with pytest.raises(Unavailable, match="sm_12"):
        compiled(12, DataType.FLOAT32)
