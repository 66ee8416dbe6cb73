"""A fake of the few parts of PyTorch that the recorder of training profiles calls, with a clock that it moves itself.

Not PyTorch: leaves take the seconds that they are told to take, and the backward pass goes through them in reverse.
"""

from __future__ import annotations

from types import SimpleNamespace


class FakeClock:
    """Seconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeParameter:
    def __init__(self, count: int, requires_grad: bool = True) -> None:
        self.count, self.requires_grad = count, requires_grad
        self.device = SimpleNamespace(type="cpu")

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return 2


class FakeTensor:
    """A batch, or the output of leaves: `tape` is what a backward pass does, first to last of the forward pass."""

    def __init__(self, samples: int, tape=()) -> None:
        self.shape, self.tape = (samples, 3), list(tape)
        self.requires_grad = bool(self.tape)

    def register_hook(self, hook) -> None:
        self.tape[-1][0].append(hook)

    def sum(self) -> FakeTensor:
        return self

    def backward(self) -> None:
        for hooks, work in reversed(self.tape):
            for hook in hooks:
                hook(None)
            work()


class FakeLeaf:
    """A module without children that takes `forward_s` and `backward_s`."""

    def __init__(self, clock: FakeClock, forward_s: float, backward_s: float, parameters=()) -> None:
        self.clock, self.forward_s, self.backward_s, self.own = clock, forward_s, backward_s, list(parameters)
        self.before, self.after = [], []

    def children(self):
        return iter(())

    def parameters(self):
        return iter(self.own)

    def register_forward_pre_hook(self, hook):
        return self._kept(self.before, hook)

    def register_forward_hook(self, hook):
        return self._kept(self.after, hook)

    def __call__(self, given: FakeTensor) -> FakeTensor:
        for hook in self.before:
            hook(self, (given,))
        self.clock.now_s += self.forward_s
        output = FakeTensor(given.shape[0], [*given.tape, ([], self._go_back)])
        for hook in self.after:
            hook(self, (given,), output)
        return output

    def _go_back(self) -> None:
        self.clock.now_s += self.backward_s

    @staticmethod
    def _kept(hooks, hook):
        hooks.append(hook)
        return SimpleNamespace(remove=lambda: hooks.remove(hook))


class FakeSequence:
    """A module that calls its leaves one after the other; a leaf may come twice."""

    def __init__(self, leaves) -> None:
        self.leaves = list(leaves)

    def children(self):
        return iter(self.leaves)

    def named_modules(self):
        unique = dict.fromkeys(self.leaves)
        return [("", self), *((str(self.leaves.index(leaf)), leaf) for leaf in unique)]

    def parameters(self):
        return iter(dict.fromkeys(parameter for leaf in self.leaves for parameter in leaf.own))

    def zero_grad(self, set_to_none: bool) -> None:
        assert set_to_none

    def __call__(self, batch: FakeTensor) -> FakeTensor:
        for leaf in self.leaves:
            batch = leaf(batch)
        return batch


FAKE_TORCH = SimpleNamespace(__version__="fake", cuda=SimpleNamespace(is_available=lambda: False))
