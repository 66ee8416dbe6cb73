"""Record the profile of a model from PyTorch, where it is installed: the one file that knows PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from synth.errors import InvalidInput, Unavailable

WARM_UP, REPEATS = 3, 10


def require_torch() -> Any:
    """Return PyTorch; Unavailable where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise Unavailable("recording a profile needs PyTorch", "no module torch", "install PyTorch") from None


def load_model(where: str) -> tuple[Any, Any]:
    """Return what the function `where` (MODULE:FUNCTION) returns: a model and the batch that one rank gives it.

    The module is looked for in the current folder too. Raises InvalidInput unless it is found and returns a pair.
    """
    module_name, separator, function_name = where.partition(":")
    rule = "a model must be given as MODULE:FUNCTION, a function that returns (model, batch)"
    if not (module_name and separator and function_name):
        raise InvalidInput(rule, where, "write my_model:make")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        answer = getattr(importlib.import_module(module_name), function_name)()
    except (ImportError, AttributeError) as error:
        raise InvalidInput(rule, f"{where}: {error}", "check both names") from error
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise InvalidInput(rule, f"{where} returned {type(answer).__name__}", "return model, batch")
    return answer


def record_profile(model: Any, batch: Any, name: str, torch: Any, clock: Callable[[], float]) -> Mapping[str, Any]:
    """Return a document in the format of docs/training.md: median times of the leaves of `model`, in forward order.

    model: a `torch.nn.Module` that takes `batch` (a tensor whose first dimension is the samples) and is alike in every
           pass; its outputs are summed up for the backward pass, which costs next to nothing
    torch: PyTorch itself
    clock: seconds

    Hooks at both ends of every leaf wait for the device, so a time is that of the leaf by itself. A leaf that is
    called several times counts as one layer with all its calls; its parameters count once, as do shared ones. Leaves
    whose input needs no gradient have no hook at the begin of their backward pass: theirs ends with the pass.
    """
    leaves = [(path, leaf) for path, leaf in model.named_modules() if not any(True for _ in leaf.children())]
    recorder = _Recorder(torch, clock)
    handles = [handle for path, leaf in leaves for handle in recorder.hooks(path, leaf)]
    try:
        for _ in range(WARM_UP):
            recorder.run(model, batch)
        recorder.runs.clear()
        for _ in range(REPEATS):
            recorder.run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    sizes = _parameters(leaves)
    first = recorder.runs[0]
    layers = [
        {
            "name": path,
            "parameters": sizes[path],
            "forward_us": round(median(run[path, "forward"] for run in recorder.runs) * 1e6, 3),
            "backward_us": round(median(run.get((path, "backward"), 0.0) for run in recorder.runs) * 1e6, 3),
        }
        for path in dict.fromkeys(path for path, kind in first if kind == "forward")
    ]
    return {
        "format": "chorale-training-profile/1",
        "name": name,
        "source": f"median of {REPEATS} runs with PyTorch {torch.__version__} on {recorder.device(model)}",
        "samples": int(batch.shape[0]),
        "bytes_per_parameter": max((p.element_size() for p in model.parameters()), default=4),
        "stages": [{"layers": layers}],
    }


class _Recorder:
    """Times of leaves by (path, "forward" or "backward"), one table per run."""

    def __init__(self, torch: Any, clock: Callable[[], float]) -> None:
        self._torch, self._clock = torch, clock
        self._began: dict[tuple[str, str], float] = {}
        self.runs: list[dict[tuple[str, str], float]] = []

    def run(self, model: Any, batch: Any) -> None:
        """Go forward and back once."""
        self.runs.append({})
        model.zero_grad(set_to_none=True)
        output = model(batch)
        output.sum().backward()

    def hooks(self, path: str, leaf: Any) -> list[Any]:
        """Register hooks that note when `leaf` begins and ends; return their handles."""
        return [
            leaf.register_forward_pre_hook(lambda *_: self._begin(path, "forward")),
            leaf.register_forward_hook(lambda *_: self._end(path, "forward")),
            leaf.register_full_backward_pre_hook(lambda *_: self._begin(path, "backward")),
            leaf.register_full_backward_hook(lambda *_: self._end(path, "backward")),
        ]

    def device(self, model: Any) -> str:
        """Return the name of the device that holds `model`."""
        first = next(iter(model.parameters()), None)
        kind = "cpu" if first is None else str(first.device.type)
        return str(self._torch.cuda.get_device_name()) if kind == "cuda" else kind

    def _begin(self, path: str, kind: str) -> None:
        self._began[path, kind] = self._now()

    def _end(self, path: str, kind: str) -> None:
        run = self.runs[-1]
        run[path, kind] = run.get((path, kind), 0.0) + self._now() - self._began[path, kind]

    def _now(self) -> float:
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        return self._clock()


def _parameters(leaves: list[tuple[str, Any]]) -> dict[str, int]:
    """Return how many parameters each leaf brings that no leaf before it has."""
    seen: set[int] = set()
    sizes = {}
    for path, leaf in leaves:
        new = [p for p in leaf.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(map(id, new))
        sizes[path] = sum(int(p.numel()) for p in new)
    return sizes
