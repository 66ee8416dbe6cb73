"""Compiles the plan executor as a CUDA kernel with NVRTC and launches it with the driver, through ctypes.

No CUDA toolkit is needed: NVRTC comes with torch for CUDA or in the wheel nvidia-cuda-nvrtc. NVRTC compiles even
on machines without a GPU.
"""

import ctypes
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from chorale.runners.engine.build import native_folder
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.engine.library import DataType, ReduceOp
from chorale.runners.plans.rank_plans import NATIVE, Arithmetic
from chorale.synth.errors import Unavailable

ENTRY = "chorale_plan"
_SOURCE = NATIVE / "plan_kernel.cu"
_HEADERS = (NATIVE / "plan_core.hpp", ENGINE / "elements.hpp")
_VERSIONS = (13, 12)
_FIRST_SWITCH = 90
"""The first GPU generation (compute capability 9.0) with switches that can add and multicast."""

_ELEMENTS = {
    DataType.FLOAT32: "float",
    DataType.FLOAT64: "double",
    DataType.FLOAT16: "chorale::Half",
    DataType.BFLOAT16: "chorale::Brain",
    DataType.INT32: "int",
    DataType.INT64: "long long",
    DataType.INT8: "signed char",
    DataType.UINT8: "unsigned char",
}
_DOES = {ReduceOp.MIN: "Least", ReduceOp.MAX: "Greatest", ReduceOp.PROD: "Times"}


@dataclass(frozen=True, slots=True)
class KernelKind:
    """Compile-time options of a kernel.

    generation: GPU generation: 90 means sm_90
    checks:     whether the kernel checks memory offsets again at run time
    """

    arithmetic: Arithmetic
    generation: int
    checks: bool = False

    def options(self) -> list[str]:
        does = _DOES.get(self.arithmetic.operation, "Plus")
        names = [f"CHORALE_ELEMENT={_ELEMENTS[self.arithmetic.type]}", f"CHORALE_DOES=chorale::{does}"]
        names += ["CHORALE_SWITCH"] if self.generation >= _FIRST_SWITCH else []
        names += ["CHORALE_CHECKS"] if self.checks else []
        return [f"--gpu-architecture=sm_{self.generation}", "-std=c++17", *(f"-D{name}" for name in names)]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled kernel. binary: CUBIN for the driver; text: its PTX, for people and tests"""

    binary: bytes
    text: str


def compile_kernel(kind: KernelKind) -> CompiledKernel:
    """Compile the kernel for `kind`; this takes seconds. Raises Unavailable if NVRTC is missing or too old."""
    library = _nvrtc()
    program = ctypes.c_void_p()
    contents = _strings([header.read_bytes() for header in _HEADERS])
    names = _strings([header.name.encode() for header in _HEADERS])
    source = _SOURCE.read_bytes()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source, _SOURCE.name.encode(), len(_HEADERS), contents, names
    )
    if created != 0:
        raise Unavailable("NVRTC refused the source of the kernel: {}", f"its status is {created}", "install it again")
    options = kind.options()
    try:
        if library.nvrtcCompileProgram(program, len(options), _strings([each.encode() for each in options])) != 0:
            log = _result(library, program, "ProgramLog").decode(errors="replace")
            value = f"sm_{kind.generation}: {log.splitlines()[0] if log else 'it says nothing'}"
            raise Unavailable("NVRTC cannot compile the kernel for this GPU: {}", value, "update torch, or its NVRTC")
        return CompiledKernel(
            _result(library, program, "CUBIN"), _result(library, program, "PTX").rstrip(b"\0").decode()
        )
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def kernel_binary(kind: KernelKind) -> bytes:
    """Return the kernel's binary for `kind` from the user's native-code cache; compile it first if necessary."""
    digest = hashlib.sha256(repr(kind.options()).encode())
    for path in (_SOURCE, *_HEADERS):
        digest.update(path.read_bytes())
    path = native_folder() / "plan_kernel" / f"{digest.hexdigest()[:16]}.cubin"
    if not path.exists():
        binary = compile_kernel(kind).binary
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{id(binary):x}")
        part.write_bytes(binary)
        part.replace(path)
        return binary
    return path.read_bytes()


class Kernel:
    """A kernel loaded into this thread's current CUDA context."""

    def __init__(self, binary: bytes) -> None:
        self._driver = _driver()
        module, self._function, self._context = (ctypes.c_void_p() for _ in range(3))
        self._check(self._driver.cuCtxGetCurrent(ctypes.byref(self._context)))
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), binary))
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, ENTRY.encode()))

    def launch(self, binding: int, blocks: int, threads: int, stream: int) -> None:
        """Enqueue a call and return without waiting. binding: address of its `Binding` in device memory"""
        self._check(self._driver.cuCtxSetCurrent(self._context))  # the calling thread may have another context
        address = ctypes.c_void_p(binding)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        sizes = (blocks, 1, 1, threads, 1, 1, 0)
        self._check(self._driver.cuLaunchKernel(self._function, *sizes, ctypes.c_void_p(stream), arguments, None))

    def _check(self, status: int) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"the CUDA driver: {(text.value or b'unknown error').decode()}")


def _strings(texts: list[bytes]) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts)


def _result(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, result)
    return result.raw


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable("there is no driver of an NVIDIA GPU: {}", error, "install it, or use CPUs") from error


@cache
def _nvrtc() -> ctypes.CDLL:
    for path in _nvrtc_paths():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue  # try the next path
    way_out = "install torch for CUDA, or nvidia-cuda-nvrtc"
    raise Unavailable("kernels need NVRTC, which is not installed", "", way_out)


def _nvrtc_paths() -> Iterator[str]:
    """Yield possible NVRTC paths: first the version for which torch was built, because the driver can load
    its output, then the newest; for each version, NVIDIA's packages before the system."""
    found, of_torch = find_spec("nvidia"), (torch.version.cuda or "").split(".")[0]
    folders = list(found.submodule_search_locations or []) if found is not None else []
    for version in sorted(_VERSIONS, key=lambda version: str(version) != of_torch):
        yield from sorted(str(path) for folder in folders for path in Path(folder).glob(f"*/lib/libnvrtc.so.{version}"))
        yield f"libnvrtc.so.{version}"
