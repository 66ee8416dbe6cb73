"""Calls NCCL or RCCL, which have the same C interface, through ctypes: communicators with settings, and collectives."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.nccl.memory import Pointer
from chorale.runners.nccl.parameters import CTA_POLICIES, SYMMETRIC, Version, call_config
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.programs.library_call import LibrarySettings

TYPES = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "int32": 2, "int64": 4}
_SUM = 0
_ID_BYTES = 128
_UNDEFINED, _MAGIC = -(2**31), 0xCAFEBEEF
_SYMMETRIC_WINDOW = 1
_NAMES = {"nccl": ("libnccl.so.2", "nvidia.nccl"), "rccl": ("librccl.so.1", "")}
_RUNTIMES = {
    "cuda": ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"),
    "hip": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
}


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * _ID_BYTES)]


class _Config(ctypes.Structure):
    """The first fields of ncclConfig_t. New versions only append fields, for which the library then uses defaults."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_void_p),
        ("split_share", ctypes.c_int),
        ("traffic_class", ctypes.c_int),
        ("name", ctypes.c_void_p),
        ("collnet", ctypes.c_int),
        ("cta_policy", ctypes.c_int),
    ]


class _CallConfig(ctypes.Structure):
    """The fields of ncclCollConfig_t in NCCL 2.31. New versions only append fields."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("extensions", ctypes.c_void_p),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("algSelection", ctypes.c_char_p),
        ("forceAlgSelection", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("userProfilerTag", ctypes.c_uint64),
    ]


def find_library(name: str) -> str:
    """Return the path or file name with which the dynamic loader finds the library `name`.

    name: a path, a file name, `nccl` or `rccl`. For `nccl`, the package nvidia-nccl (which PyTorch also uses) takes
    precedence over the system's library.

    Raises InvalidInput for another name.
    """
    if "/" in name:
        if not Path(name).is_file():
            raise InvalidInput("there is no library {}", name, "name the file libnccl.so.2")
        return name
    if name.endswith(".so"):
        return name
    if name not in _NAMES:
        raise InvalidInput("unknown library '{}'", name, "write nccl, rccl or /…/libnccl.so.2")
    file, package = _NAMES[name]
    try:
        spec = find_spec(package) if package else None
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / "lib" / file).is_file():
            return str(path)
    return file


def load_runtime(prefix: str, path: str | None) -> ctypes.CDLL:
    """Return the CUDA or HIP runtime library. Raises Unavailable if there is none."""
    names = [path] if path else list(_RUNTIMES[prefix])
    spec = None if path else find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        packaged = (found for file in _RUNTIMES[prefix] for found in sorted(Path(folder).glob(f"*/lib/{file}")))
        names = [*map(str, packaged), *names]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    way_out = "install PyTorch with CUDA or the package nvidia-cuda-runtime, or name it with the option `runtime`"
    raise Unavailable("the runtime of the GPUs was not found: {}", ", ".join(names), way_out)


class Nccl:
    """Calls a loaded NCCL or RCCL library. `version` is its (major, minor) version; `is_rccl` is true for RCCL."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            way_out = "install PyTorch with CUDA, or the package nvidia-nccl-cu13, or name the file"
            raise Unavailable("NCCL was not found: {}", error, way_out) from error
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        number = ctypes.c_int()
        self._do("GetVersion", ctypes.byref(number))
        code, base = number.value, 100 if number.value >= 10000 else 10
        parts = code // (100 * base), code // 100 % base, code % 100
        self.version: Version = parts[:2]
        self.version_text = ".".join(map(str, parts))
        self.is_rccl = "rccl" in Path(path).name

    def unique_id(self) -> bytes:
        """Return a new id, which must be passed to all ranks of a new communicator."""
        made = _UniqueId()
        self._do("GetUniqueId", ctypes.byref(made))
        return bytes(memoryview(made))

    def communicator(self, unique_id: bytes, rank: int, ranks: int, settings: LibrarySettings | None) -> int:
        """Create a communicator; all ranks call this. Its tuner reads the file that NCCL_TUNER_CONFIG_FILE names."""
        config, made = self._config(settings), Pointer()
        common = _UniqueId.from_buffer_copy(unique_id)
        self._do("CommInitRankConfig", ctypes.byref(made), ranks, common, rank, ctypes.byref(config))
        return int(made.value or 0)

    def _config(self, settings: LibrarySettings | None) -> _Config:
        major, minor = self.version
        size = _Config.split_share.offset  # size of the fields that this version of the library has
        if minor >= 18:
            size = ctypes.sizeof(_Config) if minor >= 27 else _Config.traffic_class.offset
        fields = dict.fromkeys(
            ("blocking", "cluster", "min_ctas", "max_ctas", "split_share", "traffic_class", "collnet", "cta_policy"),
            _UNDEFINED,
        )
        if settings is not None and settings.ctas is not None:
            fields |= {"min_ctas": settings.ctas, "max_ctas": settings.ctas}
        if settings is not None and settings.cta_policy is not None:
            fields["cta_policy"] = CTA_POLICIES[settings.cta_policy]
        return _Config(size=size, magic=_MAGIC, version=major * 10000 + minor * 100, net_name=None, name=None, **fields)

    def call_config(self, settings: LibrarySettings) -> object:
        """Return the configuration for calls with `settings`. If the library cannot apply them, it logs a message and
        chooses the algorithm itself."""
        unset = dict.fromkeys(("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize", "CTAPolicy"), _UNDEFINED)
        fields = {name: one.encode() if isinstance(one, str) else one for name, one in call_config(settings).items()}
        version = self.version[0] * 10000 + self.version[1] * 100
        size = ctypes.sizeof(_CallConfig)
        return _CallConfig(size=size, magic=_MAGIC, version=version, forceAlgSelection=0, **(unset | fields))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory that can be registered as a window."""
        address = Pointer()
        self._do("MemAlloc", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self._do("MemFree", Pointer(address))

    @contextmanager
    def window(
        self, communicator: int, address: int, size_bytes: int, settings: LibrarySettings | None
    ) -> Iterator[None]:
        """Register memory as a symmetric window during the `with` block if `settings` need one. All ranks call this."""
        if settings is None or settings.algorithm != SYMMETRIC:
            yield
            return
        window, size = Pointer(), ctypes.c_size_t(size_bytes)
        self._do(
            "CommWindowRegister", Pointer(communicator), Pointer(address), size, ctypes.byref(window), _SYMMETRIC_WINDOW
        )
        try:
            yield
        finally:
            self._do("CommWindowDeregister", Pointer(communicator), window)

    def collective(
        self, communicator: int, collective: Collective, source: int, target: int, elements: int, ranks: int,
        dtype: str, stream: int, config: Any = None,
    ) -> None:  # fmt: skip
        """Enqueue a collective. `elements` is the whole vector's length; `config` comes from `call_config`."""
        root, kind, share = collective.root or 0, TYPES[dtype], ctypes.c_size_t(elements // ranks)
        ends, whole = (Pointer(source), Pointer(target)), ctypes.c_size_t(elements)
        more, form = ((), "") if config is None else ((ctypes.byref(config),), "Config")
        where = Pointer(communicator), Pointer(stream), *more
        match collective.name:
            case CollectiveName.ALLREDUCE:
                self._do(f"AllReduce{form}", *ends, whole, kind, _SUM, *where)
            case CollectiveName.REDUCE:
                self._do(f"Reduce{form}", *ends, whole, kind, _SUM, root, *where)
            case CollectiveName.BROADCAST:
                self._do(f"Broadcast{form}", *ends, whole, kind, root, *where)
            case CollectiveName.ALLGATHER:
                self._do(f"AllGather{form}", *ends, share, kind, *where)
            case CollectiveName.REDUCE_SCATTER:
                self._do(f"ReduceScatter{form}", *ends, share, kind, _SUM, *where)
            case CollectiveName.ALLTOALL:
                step = elements // ranks * ELEMENT_TYPES[dtype].dtype.itemsize
                with self.group():
                    for peer in range(ranks):
                        self.send(communicator, source + peer * step, elements // ranks, dtype, peer, stream)
                        self.receive(communicator, target + peer * step, elements // ranks, dtype, peer, stream)
            case name:
                raise InvalidInput("NCCL has no {}", name.value, "measure only programs")

    @contextmanager
    def group(self) -> Iterator[None]:
        """Collect all sends and receives in the `with` block, and start them together at its end."""
        self._do("GroupStart")
        try:
            yield
        finally:
            self._do("GroupEnd")

    def send(self, communicator: int, address: int, elements: int, dtype: str, peer: int, stream: int) -> None:
        count = ctypes.c_size_t(elements)
        self._do("Send", Pointer(address), count, TYPES[dtype], peer, Pointer(communicator), Pointer(stream))

    def receive(self, communicator: int, address: int, elements: int, dtype: str, peer: int, stream: int) -> None:
        count = ctypes.c_size_t(elements)
        self._do("Recv", Pointer(address), count, TYPES[dtype], peer, Pointer(communicator), Pointer(stream))

    def _do(self, name: str, *arguments: Any) -> None:
        answer = getattr(self._library, f"nccl{name}")(*arguments)
        if answer:
            text = self._library.ncclGetErrorString(answer).decode(errors="replace")
            raise RuntimeError(f"nccl{name} answers {answer}: {text}")


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables during the `with` block, so that C libraries see them too."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
