"""One rank of NCCL without PyTorch: calls collectives by ctypes and checks what they give.

Arguments as JSON: library and runtime (paths of libnccl.so and libcudart.so), rank, ranks, folder, and calls, a list of
collective and size of the whole vector in bytes. All ranks use GPU 0. The last line of stdout says what was wrong.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

FLOAT32, SUM = 7, 0
TO_DEVICE, TO_HOST = 1, 2
ROOT = 0
Pointer = ctypes.c_void_p


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Rank:
    """A rank with a communicator, a stream, and memory for an input and an output of `largest_bytes`."""

    def __init__(self, library: str, runtime: str, rank: int, ranks: int, folder: Path, largest_bytes: int) -> None:
        self._nccl, self._cuda = ctypes.CDLL(library), ctypes.CDLL(runtime)
        self._rank, self._ranks = rank, ranks
        self._communicator, self._stream = Pointer(), Pointer()
        self._source, self._target = Pointer(), Pointer()
        self._do(self._cuda.cudaSetDevice(0))
        self._do(self._cuda.cudaStreamCreate(ctypes.byref(self._stream)))
        for memory in (self._source, self._target):
            self._do(self._cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(largest_bytes)))
        common = self._unique_id(folder / "id")
        self._do(self._nccl.ncclCommInitRank(ctypes.byref(self._communicator), ranks, common, rank))

    def is_right(self, collective: str, size_bytes: int) -> bool:
        shards = self._ranks if collective in ("allgather", "reduce_scatter") else 1
        count, whole = size_bytes // 4 // shards, size_bytes // 4
        inputs = count if collective == "allgather" else whole
        given = array("f", [self._rank + 1.0]) * inputs
        self._copy(self._source, Pointer(given.buffer_info()[0]), inputs, TO_DEVICE)
        self._do(self._call(collective, count))
        self._do(self._cuda.cudaStreamSynchronize(self._stream))
        expected = self._expected(collective, count, whole)
        result = array("f", [0.0]) * len(expected)
        self._copy(Pointer(result.buffer_info()[0]), self._target, len(expected), TO_HOST)
        return (collective == "reduce" and self._rank != ROOT) or result == expected

    def close(self) -> None:
        self._do(self._nccl.ncclCommDestroy(self._communicator))

    def _expected(self, collective: str, count: int, whole: int) -> array[float]:
        total = self._ranks * (self._ranks + 1) / 2
        if collective == "allgather":
            return array("f", [rank + 1.0 for rank in range(self._ranks) for _ in range(count)])
        if collective == "broadcast":
            return array("f", [ROOT + 1.0]) * whole
        return array("f", [total]) * (count if collective == "reduce_scatter" else whole)

    def _call(self, collective: str, count: int) -> int:
        ends = self._source, self._target, ctypes.c_size_t(count), FLOAT32
        where = self._communicator, self._stream
        calls = {
            "allreduce": lambda: self._nccl.ncclAllReduce(*ends, SUM, *where),
            "allgather": lambda: self._nccl.ncclAllGather(*ends, *where),
            "reduce_scatter": lambda: self._nccl.ncclReduceScatter(*ends, SUM, *where),
            "broadcast": lambda: self._nccl.ncclBroadcast(*ends, ROOT, *where),
            "reduce": lambda: self._nccl.ncclReduce(*ends, SUM, ROOT, *where),
        }
        return int(calls[collective]())

    def _copy(self, to: Pointer, source: Pointer, elements: int, kind: int) -> None:
        self._do(self._cuda.cudaMemcpy(to, source, ctypes.c_size_t(4 * elements), kind))

    def _unique_id(self, path: Path) -> UniqueId:
        common = UniqueId()
        if self._rank == 0:
            self._do(self._nccl.ncclGetUniqueId(ctypes.byref(common)))
            path.with_suffix(".new").write_bytes(bytes(common))
            path.with_suffix(".new").rename(path)
        while not path.exists():
            time.sleep(0.01)
        return UniqueId.from_buffer_copy(path.read_bytes())

    @staticmethod
    def _do(answer: int) -> None:
        if answer:
            raise RuntimeError(f"NCCL or CUDA answers {answer}")


def main(
    library: str, runtime: str, rank: int, ranks: int, folder: str, calls: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    made = Rank(library, runtime, rank, ranks, Path(folder), max(size_bytes for _, size_bytes in calls))
    wrong = [(name, size_bytes) for name, size_bytes in calls if not made.is_right(name, size_bytes)]
    made.close()
    return wrong


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
