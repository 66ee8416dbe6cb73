"""One sequence of faults: a campaign is launched, struck and resumed until it is done; then its history is checked."""

import json
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.checker import check
from tests.soak.faults import LIMIT_S, Process, Scene, damage, strike

LIVE = {
    "kill": 5, "terminate": 2, "interrupt": 2, "stop and go": 2, "second launch": 1, "journal replaced": 2,
    "disk full": 3, "database locked": 2, "database removed": 1, "search file damaged": 2, "search file removed": 1,
}  # fmt: skip
"""Faults of a running launch, and how often each is drawn."""
AT_REST = {
    "nothing": 5, "unfinished line": 3, "last line torn": 2, "line changed": 2, "search file garbage": 2,
    "search file a folder": 1, "search file removed": 1,
}  # fmt: skip
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


ROUNDS = 3
RESUME = "--resume"


@dataclass
class Sequence:
    """Runs `plan` in the new folder `folder`; `calm` is the folder of the same campaign without faults, or None."""

    plan: Plan
    folder: Path
    template: Path
    calm: Path | None
    faults: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """Return what happened, as a JSON document; `violations` are lines, none where all is as it must be."""
        began_s = time.monotonic()
        self.prepare()
        problems = []
        try:
            for number, attempt in enumerate(self.plan.attempts):
                self._attempt(attempt, resume=number > 0)
            self._finish(resume=bool(self.plan.attempts))
        except TimeoutError as error:
            problems.append(f"hangs: {error}")
        verdict = check(self.folder, self.calm)
        seconds = round(time.monotonic() - began_s, 1)
        document = {"seed": self.plan.seed, "campaign": self.plan.campaign, "faults": dict(self.faults), **verdict}
        return document | {"violations": problems + verdict["violations"], "seconds": seconds}

    def prepare(self) -> None:
        self.home.mkdir(parents=True)
        shutil.copy(self.template, self.home / "mlflow.db")
        self.campaign.write_text(json.dumps(self.plan.document))

    @property
    def words(self) -> list[str]:
        return ["tune", str(self.campaign), "--json"]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def campaign(self) -> Path:
        return self.folder / "soak.yaml"

    def _start(self, *words: str) -> Process:
        return Process(list(words), self.home, self.folder / "history.jsonl")

    def _tune(self, resume: bool) -> Process:
        return self._start(*self.words, *([RESUME] if resume else []))

    def _attempt(self, attempt: Attempt, resume: bool) -> None:
        process = self._tune(resume)
        scene = Scene(self.home, process, lambda: self._tune(resume=True), attempt.number)
        try:
            process.until(lambda: process.events > attempt.events, LIMIT_S)
            scene.go_on(attempt.delay_s)
            if process.code is None:
                self._count(process, attempt.live)
                strike(attempt.live, scene)
            process.wait(LIMIT_S)
        finally:
            process.kill()
        self._count(process, attempt.at_rest)
        if damage(attempt.at_rest, scene):
            if attempt.number % 2:
                self._tune(resume=True).wait(LIMIT_S)
            self._start("campaign", "repair", "soak").wait(LIMIT_S)

    def _count(self, process: Process, kind: str) -> None:
        if kind != "nothing":
            self.faults[kind] += 1
            process.note("fault", kind=kind)

    def _finish(self, resume: bool) -> None:
        """Resume until the launch is done; what it prints is the answer."""
        for _ in range(ROUNDS):
            process = self._tune(resume)
            if process.wait(LIMIT_S) == 0:
                process.note("answer", best=json.loads(process.out)["best"])
                return
            resume = True
            if "campaign repair" in process.errors:
                self._start("campaign", "repair", "soak").wait(LIMIT_S)
