"""The plug-in as NCCL calls it, by ctypes: its interfaces, tables of costs and a log."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
USUAL_COST, IGNORED = 7.5, -1.0
WARN = 2
VERSIONS = (2, 3, 4, 5, 6, 7)
NO_COSTS, WITH_CHUNKS = 2, 6
_NEW_INIT = 5
_NEW_CHOICE = 4

Pointer = ctypes.c_void_p
_Logger = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


class Interface(ctypes.Structure):
    """What a plug-in exports, whatever the version."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("init", Pointer), ("choose", Pointer), ("finish", Pointer), ("chunk", Pointer),
    ]  # fmt: skip


@dataclass
class Plugin:
    """An interface of the plug-in with one communicator. warnings: the formats of those that it wrote."""

    path: Path
    version: int
    ranks: int = 4
    nodes: int = 1
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        library = ctypes.CDLL(str(self.path))
        self._interface = Interface.in_dll(library, f"ncclTunerPlugin_v{self.version}")
        self._context = Pointer()
        self._logger = _Logger(self._log)
        to, size = ctypes.byref(self._context), ctypes.c_size_t
        if self.version >= _NEW_INIT:
            arguments: tuple[Any, ...] = (
                to,
                ctypes.c_uint64(1),
                size(self.ranks),
                size(self.nodes),
                self._logger,
                None,
                None,
            )
        else:
            arguments = size(self.ranks), size(self.nodes), self._logger, to
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.init)(*arguments) == 0

    def choice(
        self,
        collective: str,
        size_bytes: int,
        ignored: Mapping[str, str] | None = None,
        algorithms: int = len(ALGORITHMS),
    ) -> tuple[str, str, int] | None:
        """Return algorithm, protocol and channels, 0 for NCCL's own; None where all is left to NCCL.

        ignored: combinations that NCCL has not; algorithms: how many it knows
        """
        if self.version == NO_COSTS:
            return self._choice_without_costs(collective, size_bytes)
        costs = (ctypes.c_float * (algorithms * len(PROTOCOLS)))(*[USUAL_COST] * (algorithms * len(PROTOCOLS)))
        for algorithm, protocol in (ignored or {}).items():
            costs[ALGORITHMS.index(algorithm) * len(PROTOCOLS) + PROTOCOLS.index(protocol)] = IGNORED
        channels = ctypes.c_int(0)
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes), 1, costs, algorithms, len(PROTOCOLS)
        registered = (0,) if self.version >= _NEW_CHOICE else ()
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.choose)(
            self._context, *call, *registered, ctypes.byref(channels)
        )
        assert answer == 0
        best = [at for at, cost in enumerate(costs) if cost == 0]
        if not best:
            assert channels.value == 0
            return None
        [at] = best
        return ALGORITHMS[at // len(PROTOCOLS)], PROTOCOLS[at % len(PROTOCOLS)], channels.value

    def _choice_without_costs(self, collective: str, size_bytes: int) -> tuple[str, str, int] | None:
        """Ask the interface that takes a choice as it is; there are switches, and no network that adds."""
        algorithm, protocol, channels = (ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_int(0))
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes), 0, 1, 1
        answers = ctypes.byref(algorithm), ctypes.byref(protocol), ctypes.byref(channels)
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.choose)(self._context, *call, *answers) == 0
        if algorithm.value < 0:
            assert protocol.value == -1
            return None
        return ALGORITHMS[algorithm.value], PROTOCOLS[protocol.value], channels.value

    def chunk(self, collective: str, size_bytes: int, algorithm: str, protocol: str, own: int) -> int:
        """Return the bytes of a chunk, where NCCL's own are `own`; from version 6 on."""
        chunk = ctypes.c_size_t(own)
        call = COLLECTIVES.index(collective), ctypes.c_size_t(size_bytes)
        names = ALGORITHMS.index(algorithm), PROTOCOLS.index(protocol), 4
        function = ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.chunk)
        assert function(self._context, *call, *names, ctypes.byref(chunk)) == 0
        return chunk.value

    def close(self) -> None:
        """End the communicator."""
        assert ctypes.CFUNCTYPE(ctypes.c_int)(self._interface.finish)(self._context) == 0

    def _log(self, level: int, flags: int, file: bytes, line: int, text: bytes) -> None:
        if level == WARN:
            self.warnings.append(text.decode())
