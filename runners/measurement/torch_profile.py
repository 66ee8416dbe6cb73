"""Records a profile of a PyTorch model: the times of its layers."""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from chorale.synth.errors import InvalidInput, Unavailable

WARM_UP, REPEATS = 3, 10
Times: TypeAlias = dict[tuple[str, str], float]
"""(path of a leaf module, "forward" or "backward") -> seconds, in the order in which these passes first began."""


def require_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise Unavailable("recording a profile needs PyTorch, which is not installed", "", "install PyTorch") from None


def load_model(where: str) -> tuple[Any, Any]:
    """Call the function `where` (MODULE:FUNCTION), which returns a model and one rank's batch.

    MODULE may be in the current folder. Raises InvalidInput if the function is missing or does not return a pair.
    """
    module_name, separator, function_name = where.partition(":")
    rule = "a model is given as MODULE:FUNCTION, a function that returns (model, batch), not as {}"
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
    """Return a profile in the format of docs/guide/training.md: median times of `model`'s leaf modules, in order.

    model: a `torch.nn.Module` that takes `batch` (a tensor whose first dimension is the number of samples) and returns
           a tensor; the backward pass starts from the sum of that tensor
    torch: the module torch
    clock: returns the current time in seconds

    A leaf's time lasts until the next leaf begins, so it includes functions between the two leaves. The device is
    synchronized whenever a leaf begins. A leaf that is called several times counts as one layer with the total time of
    its calls. Parameters that several leaves share count once.
    """
    leaves = [(path, leaf) for path, leaf in model.named_modules() if not any(True for _ in leaf.children())]
    recorder = _Recorder(torch, clock)
    handles = [handle for path, leaf in leaves for handle in recorder.hooks(path, leaf)]
    in_place = [leaf for _, leaf in leaves if getattr(leaf, "inplace", False)]
    for leaf in in_place:
        leaf.inplace = False  # a module that changes a view in place would remove the hooks of the module that made it
    try:
        runs = [recorder.run(model, batch) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    finally:
        for handle in handles:
            handle.remove()
        for leaf in in_place:
            leaf.inplace = True
    seen: set[int] = set()
    sizes = {}  # leaf -> number of its parameters that no earlier leaf has
    for path, leaf in leaves:
        new = [p for p in leaf.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(map(id, new))
        sizes[path] = sum(int(p.numel()) for p in new)
    layers = []
    for path in (path for path, kind in runs[0] if kind == "forward"):
        times = {
            f"{kind}_us": round(median(run.get((path, kind), 0.0) for run in runs) * 1e6, 3)
            for kind in ("forward", "backward")
        }
        layers.append({"name": path, "parameters": sizes[path], **times})
    return {
        "format": "chorale-training-profile/1",
        "name": name,
        "source": f"median of {REPEATS} runs with PyTorch {torch.__version__} on {recorder.device(model)}",
        "samples": int(batch.shape[0]),
        "bytes_per_parameter": max((p.element_size() for p in model.parameters()), default=4),
        "stages": [{"layers": layers}],
    }


class _Recorder:
    """Measures the time of each leaf module: from its start to the start of the next leaf."""

    def __init__(self, torch: Any, clock: Callable[[], float]) -> None:
        self._torch, self._clock = torch, clock
        self._times: Times = {}
        self._running: tuple[str, str] | None = None
        self._since = 0.0

    def run(self, model: Any, batch: Any) -> Times:
        """Run one forward and one backward pass; return the leaves' times."""
        self._times = {}
        model.zero_grad(set_to_none=True)
        output = model(batch).sum()
        self._begin(None)
        output.backward()
        self._begin(None)
        return self._times

    def hooks(self, path: str, leaf: Any) -> list[Any]:
        """Register hooks that record when `leaf` begins in the forward and the backward pass; return their handles."""

        def watch_output(_leaf: Any, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if getattr(first, "requires_grad", False):
                first.register_hook(lambda _gradient: self._begin((path, "backward")))

        forward = leaf.register_forward_pre_hook(lambda *_: self._begin((path, "forward")))
        return [forward, leaf.register_forward_hook(watch_output)]

    def device(self, model: Any) -> str:
        first = next(iter(model.parameters()), None)
        kind = "cpu" if first is None else str(first.device.type)
        return str(self._torch.cuda.get_device_name()) if kind == "cuda" else kind

    def _begin(self, leaf: tuple[str, str] | None) -> None:
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        now = self._clock()
        if self._running is not None:
            self._times[self._running] += now - self._since
        self._running, self._since = leaf, now
        if leaf is not None:
            self._times.setdefault(leaf, 0.0)
