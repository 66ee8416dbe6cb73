"""MscclRunner: times programs that MSCCL, its executor or RCCL executes on GPUs, and the library's own algorithms."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    ProgramSettings,
    ResourceRequest,
    RunRequest,
    SizeMeasurement,
    library_result,
)
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault
from chorale.runners.execution.rounds import Environment, RunStopped
from chorale.runners.msccl.commands import JOB, program_settings, rocm_fault, runtime_for, served_size, size_mismatch
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.results import log_fault, time_fault
from chorale.runners.nccl.rank import NcclPart
from chorale.runners.nccl.runner import GpuRunner, NcclGroups, Variant, library_variant
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named

OWN_CHOICE = "nccl"
"""Name for calls in which the library chooses one of its own algorithms."""

_PINNED: Mapping[str, Mapping[str, str]] = {
    OWN_CHOICE: {}, "ring": {"NCCL_ALGO": "RING"}, "tree": {"NCCL_ALGO": "TREE"}
}  # fmt: skip
_PINNED_FOR = {"allreduce": ("ring", "tree"), "allgather": ("ring",), "reduce_scatter": ("ring",)}
"""Collective -> algorithms that NCCL can be forced to use on all machines."""


class MscclRunner(GpuRunner[MscclConfig]):
    """Implements `Runner` on a library with NCCL's interface that executes MSCCL programs.

    Each program has its own processes, in which the library loads it. Before a program is timed, it runs in processes
    with logging. If the log does not show that the runtime executed it at every size, the result is a RunFailure of
    kind `rejected`. The same holds if a runtime logs no calls and the times equal the library's at every size, unless
    they differed in an earlier request for the same program. Buffer sizes are set for programs only; the library's own
    algorithms keep its defaults.
    """

    name = "msccl"

    def __init__(self, config: MscclConfig, node: ResourceRequest | None = None) -> None:
        super().__init__(config, node)
        self._seen: set[object] = set()  # programs that must have run, because their times differed from the library's

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the name of the library's own choice, and of each algorithm that it can be forced to use."""
        return (OWN_CHOICE, *_PINNED_FOR.get(collective, ()))

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        yield from super()._faults(request)
        if (fault := rocm_fault(self._config.runtime)) is not None:
            yield FailureKind.REJECTED, fault
        programs = list(request.without_plans.values())
        if len({program.in_place for program in programs}) > 1:
            yield FailureKind.REJECTED, "all programs of a request must be of one placement"
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        for name, program in request.without_plans.items():
            try:
                runtime_for(self._config.runtime, program)
            except InvalidInput as error:
                yield FailureKind.REJECTED, f"program {name}: {error}"
            for requested_bytes in request.sizes_bytes:
                size_bytes = served_size(requested_bytes, element_bytes, programs)
                if (reason := size_mismatch(program, size_bytes, element_bytes)) is not None:
                    message = f"program {name}: the runtime would fall back at {size_bytes} bytes: {reason}"
                    yield FailureKind.REJECTED, message

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        """Measure at sizes that all programs support. If calls are not logged, compare times with the library's."""
        programs = list(request.without_plans.values())
        runtime = runtime_for(self._config.runtime, programs[0])
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        served = tuple(served_size(size_bytes, element_bytes, programs) for size_bytes in request.sizes_bytes)
        is_witness = runtime.scheduled is None and OWN_CHOICE not in request.library
        library = (*request.library, OWN_CHOICE) if is_witness else request.library
        measured = super()._measure(replace(request, sizes_bytes=served, library=library), environment)
        environment["runtime"] = runtime.name
        results = dict(measured.results)
        if runtime.scheduled is None:
            for name, program in request.without_plans.items():
                own, others = _by_size(results[name]), _by_size(results[library_result(OWN_CHOICE)])
                process = self._part(request, name, program).process
                reason = None if process in self._seen else time_fault(own, others)
                if reason is not None:
                    raise RunStopped(FailureKind.REJECTED, f"program {name} fell back: {reason}")
                self._seen.add(process)
        if is_witness:
            del results[library_result(OWN_CHOICE)]
        requested = {
            name: tuple(
                replace(one, requested_bytes=size) for one, size in zip(sizes, request.sizes_bytes, strict=True)
            )
            for name, sizes in results.items()
        }
        return replace(measured, results=requested)

    def _part(self, request: RunRequest, name: str, program: Program) -> NcclPart:
        runtime = runtime_for(self._config.runtime, program)
        settings = request.settings.get(name, ProgramSettings())
        variables = {key: text.replace(f"{JOB}/", "") for key, text in runtime.enabling.items()}
        variables |= program_settings(program, runtime, settings.buffer_bytes or self._config.buffer_bytes)
        (call, *_) = library_variant(program.collective, None, program.in_place, len(program.ranks), variables)
        return replace(call, program=target_named(program.target).emit(program))

    def _variants(self, request: RunRequest, group: NcclGroups) -> list[Variant]:
        ranks, first = request.topology.compute_count, next(iter(request.without_plans.values()))
        parts = [self._part(request, name, program) for name, program in request.without_plans.items()]
        disabling = runtime_for(self._config.runtime, first).disabling
        return [
            *([part] * ranks for part in parts),
            *(
                library_variant(first.collective, None, first.in_place, ranks, {**disabling, **_PINNED[name]})
                for name in request.library
            ),
        ]

    def _prove(self, group: NcclGroups, request: RunRequest, variants: Sequence[Variant], deadline: float) -> None:
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        for (name, program), variant in zip(request.without_plans.items(), variants, strict=False):
            runtime = runtime_for(self._config.runtime, program)
            proved = [(variant[0].process, request.dtype, size // element_bytes) for size in request.sizes_bytes]
            if self._proved.issuperset(proved):
                continue
            elements = [count for _, _, count in proved]
            texts = [""] * len(group.ranks)
            for number, logs in enumerate(self._logs(group, request, variant, f"program {name}", elements, deadline)):
                texts = ["\n".join([text, *more]) for text, more in zip(texts, logs, strict=True)]
                calls = number * (1 + self._config.iterations)
                if number and (reason := log_fault(runtime, texts, len(group.ranks), calls)) is not None:
                    raise RunStopped(FailureKind.REJECTED, f"program {name} fell back: {reason}")
            self._proved |= set(proved)


def _by_size(results: Sequence[SizeMeasurement]) -> dict[int, list[float]]:
    return {one.size_bytes: [median(one.times_s)] for one in results}
