"""What happens in a sequence: drawn from its seed alone, so that a seed repeats it."""

import random
from dataclasses import dataclass
from typing import Any

LIVE = {
    "kill": 5,
    "terminate": 2,
    "interrupt": 2,
    "stop and go": 2,
    "second launch": 1,
    "journal replaced": 2,
    "disk full": 3,
    "database locked": 2,
    "database removed": 1,
    "search file damaged": 2,
    "search file removed": 1,
}
"""Faults of a running launch, and how often each is drawn."""
AT_REST = {
    "nothing": 5,
    "unfinished line": 3,
    "last line torn": 2,
    "line changed": 2,
    "search file garbage": 2,
    "search file a folder": 1,
    "search file removed": 1,
}
"""Faults of the files of a launch that has ended."""

METHODS = ["bfb", "ring", "biring", "swing", "recursive-doubling"]
CAMPAIGNS: dict[str, dict[str, Any]] = {
    "plain": {"search": {"methods": METHODS[:3], "channels": [1, 2]}, "parallel": 1},
    "side by side": {"search": {"methods": METHODS, "channels": [1, 2]}, "parallel": 4, "sizes": ["4KiB", "1MiB"]},
    "model": {"search": {"methods": METHODS[:2], "chunks": [1, 2, 3]}, "sampler": "sizes-gp", "sizes": ["64KiB"]},
    "grid": {"search": {"methods": METHODS[:2], "channels": [1, 2], "instances": [1, 2]}, "sampler": "grid"},
    "failures": {"search": {"methods": ["bfb", "hamiltonian-ring", "double-binary-tree"], "chunks": [None, 1]}},
}
"""Campaigns that try every point of their space, so that the answer does not depend on the order."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start of the launch: the fault `live` after `events` events and a delay, then `at_rest` when it has ended.

    `number` is a random number for what a fault chooses.
    """

    live: str
    events: int
    delay_s: float
    at_rest: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A sequence: some attempts with faults, after which the launch is resumed until it is done."""

    seed: int
    campaign: str
    attempts: tuple[Attempt, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The campaign file."""
        return {
            "name": "soak",
            "topology": "ring:4",
            "collective": "allreduce",
            "sizes": ["4KiB", "64KiB"],
            "runner": {"kind": "simulated", "alpha_us": 3},
            "sampler": "random",
            "repeats": 1,
            "final": {"launches": 2, "contenders": 2},
            **CAMPAIGNS[self.campaign],
            "budget": {"trials": 10**6},
        }


def plan_of(seed: int) -> Plan:
    """Return the sequence of a seed."""
    chance = random.Random(seed)
    attempts = tuple(
        Attempt(
            chance.choices(list(LIVE), list(LIVE.values()))[0],
            chance.randint(0, 32),
            chance.choice((0.0, 0.0, chance.uniform(0, 0.05))),
            chance.choices(list(AT_REST), list(AT_REST.values()))[0],
            chance.randrange(2**16),
        )
        for _ in range(chance.randint(1, 3))
    )
    return Plan(seed, chance.choice(list(CAMPAIGNS)), attempts)
