"""Maps over groups: every task is done whatever leaders and workers do, with few messages. Leaders are simulated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.workers import Completion, Future
from chorale.runners.ray import grouped_map
from chorale.runners.ray.grouped_map import _Group, _GroupedMap
from chorale.runners.ray.groups import GroupReport
from chorale.synth.errors import InvalidInput, Unavailable
from tests.integration.coordinator import RayCosts, run

FREE = RayCosts(0.0, 0.0, 0.0, 0.0)


class Leader:
    """Stands for the pool of a leader. `fate` says for each exchange whether it dies, has no workers, or works."""

    def __init__(self, size, fate, started=None):
        self.size, self.fate = size, fate
        self.started = size if started is None else started
        self.incarnation, self.held, self.waiting = 0, [], None
        self.calls = 0

    def submit(self, call):
        self.waiting = (call, Future())
        self.calls += 1
        return self.waiting[1]

    def references(self):
        return [self] if self.waiting else []

    def collect(self):
        if self.waiting is None:
            return
        (call, future), self.waiting = self.waiting, None
        fate = self.fate()
        if fate == "dies":  # before the exchange, which its pool sends again to a new one
            self.incarnation += 1
            self.held = []
        self.held += call.arguments[2]
        results, returned, error = [], [], None
        if fate == "no workers":
            returned, self.held = [number for number, _ in self.held], []
        elif fate != "slow":
            done, self.held = self.held[: self.size], self.held[self.size :]
            results = [(number, task * task) for number, task in done]
            error = next((InvalidInput("a task", task, "") for _, task in done if task < 0), None)
        report = GroupReport(str(self.incarnation), self.started, False, results, error, returned)
        future.complete(Completion(report))


def mapped(leaders, tasks, monkeypatch):
    monkeypatch.setattr(grouped_map, "ray", SimpleNamespace(wait=lambda references, **_: (references[:1], [])))
    results = {}
    _GroupedMap([_Group(leader, leader.size) for leader in leaders], 1, [], tasks).run(results.__setitem__)
    return [results[number] for number in range(len(tasks))]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 40), st.randoms(use_true_random=False))
def test_every_task_is_done_whatever_happens_to_some(sizes, tasks, random):
    fates = iter(random.choices(["dies", "no workers", "slow", "works"], k=3))
    leaders = [Leader(size, lambda: next(fates, "works")) for size in sizes]
    with pytest.MonkeyPatch.context() as patches:
        assert mapped(leaders, range(tasks), patches) == [task * task for task in range(tasks)]


@pytest.mark.parametrize("fate", ["dies", "no workers"])
def test_what_is_always_lost_is_given_up(fate, monkeypatch):
    fates = iter(["slow"] * 2)
    leader = Leader(2, lambda: next(fates, fate) if leader.calls % 2 else "slow")
    if fate == "no workers":
        leader.fate = lambda: fate if leader.calls > 1 else "slow"
    with pytest.raises(Unavailable, match="survive its tasks within 4 attempts"):
        mapped([leader], range(3), monkeypatch)


def test_an_error_of_a_task_ends_the_map(monkeypatch):
    with pytest.raises(InvalidInput, match="got -1"):
        mapped([Leader(2, lambda: "works")], [1, -1, 2], monkeypatch)


def test_nobody_starts(monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(grouped_map, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(Unavailable, match="2 workers without a node after 150 s"):
        mapped([Leader(1, lambda: "works", 0), Leader(1, lambda: "works", 0)], [1], monkeypatch)


def test_a_thousand_workers_cost_few_messages_and_hardly_wait():
    row = run(1000, 3000, lambda number: 0.5 + number % 10 / 10, FREE)
    single = run(40, 120, lambda number: 0.5 + number % 10 / 10, FREE, 0)
    assert single["messages"] == 120
    assert row["messages"] < 300
    assert row["times_ideal"] < 1.5
