"""One sequence of faults: a campaign is launched, struck and resumed until it is done; then its history is checked."""

import json
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.checker import check
from tests.soak.faults import LIMIT_S, Scene, damage, strike
from tests.soak.plans import Attempt, Plan
from tests.soak.process import Process

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
        """Make the data folder and the campaign file."""
        self.home.mkdir(parents=True)
        shutil.copy(self.template, self.home / "mlflow.db")
        self.campaign.write_text(json.dumps(self.plan.document))

    @property
    def words(self) -> list[str]:
        """The command line of the campaign."""
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
