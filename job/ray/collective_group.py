"""A ray.util.collective group of actors that runs a tuning table's programs and leaves the rest to Gloo."""

import time
from typing import Any

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util.collective import types
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from chorale.job import current_report
from chorale.job.group import GroupEngine, StoreExchange
from chorale.job.settings import JobSettings, job_table
from chorale.job.table.layout import Fallback, JobEntry
from chorale.runners.engine.library import TORCH_VARIABLES, DataType, Devices, ReduceOp, Work
from chorale.synth.errors import InvalidInput, Unavailable

_OPERATIONS = {
    types.ReduceOp.SUM: ReduceOp.SUM,
    types.ReduceOp.PRODUCT: ReduceOp.PROD,
    types.ReduceOp.MIN: ReduceOp.MIN,
    types.ReduceOp.MAX: ReduceOp.MAX,
}
_LIMIT_S = 60.0  # time limit for all actors to join a group


class ChoraleRayGroup(BaseGroup):
    """Implements Ray's collective group for NumPy arrays and torch tensors in CPU memory.

    Calls return when this actor has its result. Programs run on the engine. Gloo, which needs torch, handles barriers,
    messages between two actors and calls that the table does not cover.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        settings = JobSettings.from_environment()
        if settings.table is None:
            rule = "the backend CHORALE needs a tuning table"
            raise InvalidInput(rule, "", "set CHORALE_TABLE to one, for all actors (runtime_env env_vars)")
        table, digest = job_table(settings.table)
        current_report().table, current_report().ranks = digest, world_size
        name = f"chorale/{ray.get_runtime_context().get_job_id()}/{group_name}"
        exchange = StoreExchange(_KeyValues(), rank, world_size, _LIMIT_S, name)
        ranks = range(world_size)
        self._strict = settings.strict
        node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        devices = Devices(settings.interface, TORCH_VARIABLES, node)
        self._engine = GroupEngine(table, digest, ranks, rank, exchange, devices, _LIMIT_S)
        # Remove the strings of `rank`, so that a later group of the same name starts empty
        internal_kv._internal_kv_del(f"{name}/0/{rank}".encode())
        self._inner: Any = None
        if "th" in vars(types):  # torch is installed
            from ray.util.collective.collective_group.torch_gloo_collective_group import TorchGLOOGroup  # noqa: PLC0415

            self._inner = TorchGLOOGroup(world_size, rank, f"{group_name}-gloo")

    @classmethod
    def backend(cls) -> str:
        return "CHORALE"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return true: the engine is built at first use, so nothing can be checked here."""
        return True

    def destroy_group(self) -> None:
        self._engine.close()
        if self._inner is not None:
            self._inner.destroy_group()

    def allreduce(self, tensor: Any, allreduce_options: Any = types.AllReduceOptions()) -> None:  # noqa: B008 - as in Ray
        operation = allreduce_options.reduceOp
        if not self._run("allreduce", None, tensor[0], tensor[0], operation):
            self._gloo().allreduce(_tensors(tensor), allreduce_options)

    def reduce(self, tensor: Any, reduce_options: Any = types.ReduceOptions()) -> None:  # noqa: B008
        """Reduce all actors' tensors into the root's tensor. The other actors' tensors do not change."""
        root, kept = reduce_options.root_rank, tensor[0]
        target = kept if root == self.rank else _empty(kept, _bytes(kept))
        if not self._run("reduce", root, kept, target, reduce_options.reduceOp):
            self._gloo().reduce(_tensors(tensor), reduce_options)

    def broadcast(self, tensor: Any, broadcast_options: Any = types.BroadcastOptions()) -> None:  # noqa: B008
        if not self._run("broadcast", broadcast_options.root_rank, tensor[0], tensor[0]):
            self._gloo().broadcast(_tensors(tensor), broadcast_options)

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = types.AllGatherOptions()) -> None:  # noqa: B008
        outputs, source = tensor_list[0], tensor[0]
        gathered = _empty(source, _bytes(source) * self.world_size)
        if not self._run("allgather", None, source, gathered):
            self._gloo().allgather([_tensors(outputs)], _tensors(tensor), allgather_options)
            return
        for output, part in zip(outputs, np.split(gathered, self.world_size), strict=True):
            _array(output)[...] = part.reshape(_array(output).shape)

    def reducescatter(
        self,
        tensor: Any,
        tensor_list: Any,
        reducescatter_options: Any = types.ReduceScatterOptions(),  # noqa: B008
    ) -> None:
        """Reduce the actors' lists element by element. The actor with rank r gets the result at index r."""
        output, inputs = tensor[0], tensor_list[0]
        whole = np.concatenate([_array(part).reshape(-1) for part in inputs])
        if not self._run("reduce_scatter", None, whole, output, reducescatter_options.reduceOp):
            self._gloo().reducescatter(_tensors(tensor), [_tensors(inputs)], reducescatter_options)

    def barrier(self, barrier_options: Any = types.BarrierOptions()) -> None:  # noqa: B008
        self._gloo().barrier(barrier_options)

    def send(self, tensor: Any, send_options: Any) -> None:
        self._gloo().send(_tensors(tensor), send_options)

    def recv(self, tensor: Any, recv_options: Any) -> None:
        self._gloo().recv(_tensors(tensor), recv_options)

    def _run(
        self, collective: str, root: int | None, source: Any, target: Any, operation: Any = types.ReduceOp.SUM
    ) -> bool:
        """Run the program for a call and return True. If the library must handle the call, count the reason
        and return False. Arrays that are not contiguous are copied.
        """
        first, last = _array(source), _array(target)
        dtype, size_bytes = str(first.dtype), max(first.nbytes, last.nbytes)
        answer: JobEntry | Fallback = Fallback.DTYPE
        if dtype.upper() in DataType.__members__:
            answer = self._engine.entries.find(collective, root, dtype, size_bytes)
        if isinstance(answer, JobEntry) and answer.program not in self._engine.programs:
            answer = Fallback.PLAN
        elif isinstance(answer, JobEntry) and size_bytes == 0:
            answer = Fallback.SIZE
        if not isinstance(answer, JobEntry):
            if self._strict and answer is not Fallback.LIBRARY:
                call = f"{collective} of {size_bytes} bytes of {dtype}: {answer}"
                raise InvalidInput(
                    "CHORALE_STRICT=1, and the table does not cover {}", call, "add an entry, or unset it"
                )
            current_report().count_fallback(answer.value, collective, size_bytes)
            return False
        start, program = time.perf_counter(), str(answer.program)
        given = np.ascontiguousarray(first)
        taken = last if last.flags.c_contiguous else np.empty(last.shape, last.dtype)
        if last is first:
            taken = given
        memory = given.ctypes.data, taken.ctypes.data, max(given.size, taken.size)
        element = DataType[dtype.upper()]
        self._engine.execute(
            Work(self._engine.programs[program], *memory, element, _OPERATIONS[operation], limit_s=1800.0)
        )
        if taken is not last:
            last[...] = taken
        current_report().count_program(program, collective, size_bytes, time.perf_counter() - start)
        return True

    def _gloo(self) -> Any:
        if self._inner is None:
            raise Unavailable(
                "calls that the tuning table does not cover need Gloo, but torch is not installed", "", "install it"
            )
        return self._inner


def _array(tensor: Any) -> Any:
    """Return a NumPy array that shares the memory of `tensor`."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()


def _bytes(tensor: Any) -> int:
    return int(_array(tensor).nbytes)


def _empty(like: Any, size_bytes: int) -> Any:
    dtype = _array(like).dtype
    return np.empty(size_bytes // dtype.itemsize, dtype)


def _tensors(values: Any) -> list[Any]:
    """Return torch tensors that share the memory of `values`, because Gloo needs tensors."""
    torch = vars(types)["th"]  # Ray's own import of torch, if torch is installed
    return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]


class _KeyValues:
    """Wraps Ray's key-value store in an object with the methods of torch stores that `StoreExchange` uses."""

    def check(self, keys: list[str]) -> bool:
        return all(internal_kv._internal_kv_exists(key.encode()) for key in keys)

    def get(self, key: str) -> Any:
        return internal_kv._internal_kv_get(key.encode())

    def set(self, key: str, value: str) -> None:
        internal_kv._internal_kv_put(key.encode(), value.encode(), overwrite=True)
