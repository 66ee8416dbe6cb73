"""Runs plans as kernels on devices: GPUs with torch's symmetric memory or, in tests, CPUs that replace GPUs.

NVRTC compiles the kernel and the CUDA driver launches it; both are called through ctypes. No CUDA toolkit is needed:
NVRTC comes with torch for CUDA or in the wheel nvidia-cuda-nvrtc. NVRTC compiles even on machines without a GPU.
"""

import ctypes
import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from chorale.runners.engine.build import native_folder
from chorale.runners.engine.library import NATIVE as ENGINE, DataType, ReduceOp
from chorale.runners.plans.rank_plans import NATIVE, Arithmetic, load_plan_library, plan_library
from chorale.synth.errors import Unavailable

DTYPES = {getattr(torch, each.name.lower()): each for each in DataType if each <= DataType.UINT8}
"""torch type -> DataType, for the types that both plans and programs support. Tables write DataType's names in lower
case."""


ENTRY = "chorale_plan"
_SOURCE = NATIVE / "plan_kernel.cu"
_HEADERS = (NATIVE / "plan_core.hpp", ENGINE / "elements.hpp")
_VERSIONS = (13, 12)
_FIRST_SWITCH = 90
"""The first GPU generation (compute capability 9.0) whose switches can reduce and multicast data."""

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
_POLL_S = 0.0002
Exchange = Callable[[list[str]], list[list[str]]]
"""Function that all ranks call together: it sends this rank's strings and returns all ranks' strings, in rank order."""


@dataclass(frozen=True, slots=True)
class KernelKind:
    """The compile-time options of a kernel.

    arithmetic: element type and reduce operation
    generation: GPU generation, such as 90 for sm_90
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


def compile_kernel(kind: KernelKind) -> tuple[bytes, str]:
    """Compile the kernel for `kind`; return its binary (CUBIN) and its assembly code (PTX) for inspection.

    This takes seconds. Raises Unavailable if NVRTC is missing or too old.
    """
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
        return _result(library, program, "CUBIN"), _result(library, program, "PTX").rstrip(b"\0").decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def kernel_binary(kind: KernelKind) -> bytes:
    """Return the kernel's binary for `kind` from the user's native-code cache; compile it first if necessary."""
    digest = hashlib.sha256(repr(kind.options()).encode())
    for path in (_SOURCE, *_HEADERS):
        digest.update(path.read_bytes())
    path = native_folder() / "plan_kernel" / f"{digest.hexdigest()[:16]}.cubin"
    if not path.exists():
        binary, _ = compile_kernel(kind)
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
        """Enqueue a kernel call and return without waiting. The call's `Binding` is at the device address `binding`."""
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
    """Load NVRTC. The version that belongs to torch's CUDA is tried first, because the driver can load code from it.
    The newest version is next. For each version, NVIDIA's Python packages are tried before the system's library.
    """
    found, of_torch = find_spec("nvidia"), (torch.version.cuda or "").split(".")[0]
    folders = list(found.submodule_search_locations or []) if found is not None else []
    for version in sorted(_VERSIONS, key=lambda version: str(version) != of_torch):
        paths = (path for folder in folders for path in Path(folder).glob(f"*/lib/libnvrtc.so.{version}"))
        for path in (*sorted(map(str, paths)), f"libnvrtc.so.{version}"):
            try:
                return ctypes.CDLL(path)
            except OSError:
                continue  # try the next path
    way_out = "install torch for CUDA, or nvidia-cuda-nvrtc"
    raise Unavailable("kernels need NVRTC, which is not installed", "", way_out)


@dataclass(frozen=True, slots=True)
class SymmetricBuffer:
    """Memory that all ranks of a group can access. Each rank has one part; all parts have the same size.

    own:        this rank's part, a tensor of bytes
    bases:      address of each rank's part
    everywhere: multicast address, through which a switch writes to all parts or sums them; 0 without such a switch
    """

    own: Any
    bases: tuple[int, ...]
    everywhere: int = 0


def registered_group(store: Any, name: str, rank: int, ranks: int) -> Any:
    """Return a new torch group without backends; symmetric memory uses its name to find the ranks and the store.

    The caller must keep a reference to the group as long as the memory is used, because torch only has a weak one.
    """
    group = dist.ProcessGroup(store, rank, ranks)
    c10d._register_process_group(name, group)
    return group


class CudaDevice:
    """Runs plan kernels for one rank on the current GPU, in torch's symmetric memory.

    group:       name for the torch group that is created
    name:        torch's name for this device type
    most_blocks: number of thread blocks that are guaranteed to run at the same time
    """

    name = "cuda"

    def __init__(self, rank: int, ranks: int, store: Any, group: str, sharing: int = 1, checks: bool = False) -> None:
        """Join the group. `sharing`: number of ranks that use this GPU at the same time. `checks`: see `KernelKind`."""
        self._memory, self._rank, self._checks = c10d._SymmetricMemory, rank, checks
        self._name, self._group = group, registered_group(store, group, rank, ranks)
        self._device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, device=self._device)  # creates the CUDA context
        facts = torch.cuda.get_device_properties(self._device)
        self._generation = 10 * facts.major + facts.minor
        self.most_blocks = facts.multi_processor_count // sharing
        self._kernels: dict[KernelKind, Kernel] = {}
        self._last: tuple[Any, Any] | None = None  # the stream of the last call, and an event at its end
        self._host: list[Any] = []

    def allocate(self, size_bytes: int) -> SymmetricBuffer:
        """Return memory filled with zeros; all ranks call this together. Raises torch's error if the GPUs cannot access
        each other's memory.
        """
        own = self._memory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, self._device)
        own.zero_()
        torch.cuda.synchronize(self._device)
        handle = self._memory.rendezvous(own, self._name)
        skipped = own.data_ptr() - handle.buffer_ptrs[self._rank]
        everywhere = handle.multicast_ptr
        bases = tuple(base + skipped for base in handle.buffer_ptrs)
        return SymmetricBuffer(own, bases, everywhere + skipped if everywhere else 0)

    def tensor(self, words: Any) -> Any:
        """Copy an array of 64-bit words to the device and return it as a tensor."""
        return torch.from_numpy(np.asarray(words).view(np.int64)).to(self._device)

    def host_words(self, count: int) -> Any:
        """Return an array of `count` zeros in pinned host memory. Kernels write to the array, and the host can read it
        without waiting for kernels.
        """
        pinned = torch.zeros(count, dtype=torch.int64, pin_memory=True)
        self._host.append(pinned)
        return pinned.numpy()

    def prepare(self, arithmetic: Arithmetic) -> None:
        """Compile and load the kernel for `arithmetic` unless it is already loaded; this may take seconds."""
        kind = self._kind(arithmetic)
        if kind not in self._kernels:
            self._kernels[kind] = Kernel(kernel_binary(kind))

    def launch(self, arithmetic: Arithmetic, binding: Any, blocks: int, threads: int) -> None:
        """Enqueue a kernel on the current stream. `binding` is a tensor that holds the kernel's `Binding`."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._kernels[self._kind(arithmetic)].launch(binding.data_ptr(), blocks, threads, stream)

    def timed(self, work: Callable[[], object], limit_s: float) -> float | None:
        """Return the seconds that `work` takes on the current stream, or None if it takes longer than `limit_s`."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        deadline = time.monotonic() + limit_s
        start.record()
        work()
        end.record()
        while not end.query():
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return float(start.elapsed_time(end)) / 1e3

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Make work enqueued in this `with` block run after that of earlier `with` blocks, even on another stream.

        While a CUDA graph is captured, this does nothing: the graph keeps its stream's order.
        """
        stream = torch.cuda.current_stream(self._device)
        if torch.cuda.is_current_stream_capturing():
            yield
            return
        before, done = self._last or (stream, torch.cuda.Event())
        if before != stream:
            stream.wait_event(done)
        yield
        done.record(stream)
        self._last = stream, done

    def _kind(self, arithmetic: Arithmetic) -> KernelKind:
        same = Arithmetic(arithmetic.type, arithmetic.operation)  # keeps_wide is passed to each call
        return KernelKind(same, self._generation, self._checks)


class ProcessorDevice:
    """The counterpart of `CudaDevice` for tests, with CPU threads and shared memory instead of a GPU.

    `launch` returns only when the call has finished. Tests on it check results and synchronization, but not speed.
    """

    name = "cpu"
    most_blocks = 256

    def __init__(self, rank: int, exchange: Exchange, most_threads: int = 2) -> None:
        self._rank, self._exchange, self._most_threads = rank, exchange, most_threads
        self._library = load_plan_library(plan_library())

    def allocate(self, size_bytes: int) -> SymmetricBuffer:
        """Map a file that all ranks share. The file is unlinked right away, so it vanishes when the last rank ends."""
        stride = -(-size_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        path, descriptor = "", -1
        if self._rank == 0:
            folder = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - a file with a random name
            descriptor, path = tempfile.mkstemp(prefix="chorale-", dir=folder)
        everyone = self._exchange([path])
        try:
            descriptor = descriptor if self._rank == 0 else os.open(everyone[0][0], os.O_RDWR)
            os.ftruncate(descriptor, stride * len(everyone))
            memory = torch.from_numpy(np.frombuffer(mmap.mmap(descriptor, stride * len(everyone)), np.uint8))
            self._exchange([""])
        finally:
            os.close(descriptor)
            if self._rank == 0:
                os.unlink(path)
        bases = tuple(memory.data_ptr() + rank * stride for rank in range(len(everyone)))
        return SymmetricBuffer(memory[self._rank * stride :][:size_bytes], bases)

    def tensor(self, words: Any) -> Any:
        return torch.from_numpy(np.array(words).view(np.int64))

    def host_words(self, count: int) -> Any:
        return np.zeros(count, np.int64)

    def prepare(self, arithmetic: Arithmetic) -> None:
        """Do nothing: the library already contains the code for all types and operations."""

    def timed(self, work: Callable[[], object], limit_s: float) -> float | None:
        begin_s = time.perf_counter()
        work()
        return time.perf_counter() - begin_s

    def in_turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def launch(self, arithmetic: Arithmetic, binding: Any, blocks: int, threads: int) -> None:
        end_ns = np.zeros(1, np.int64)
        used = min(threads, self._most_threads)
        self._library.chorale_plan_call(binding.data_ptr(), used, 0, end_ns.ctypes.data)


PlanDevice = CudaDevice | ProcessorDevice


def copy_shards(to: Any, to_stride: int, source: Any, from_stride: int) -> None:
    """Copy shards from `source` to `to`. A stride is the number of elements between the starts of two shards."""
    most = min(to_stride, from_stride)
    to.view(-1, to_stride)[:, :most].copy_(source.view(-1, from_stride)[:, :most])
