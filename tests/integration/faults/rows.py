"""A fault in the middle of a launch, and what came of it."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.faults.launched import LIMIT_S, STRIKE_AFTER, TRIALS, Launched, Setting, Strike, alone
from tests.waiting import until

GOAL_S = 60.0
"""Until work goes on after a fault, or the launch has ended with a line that says why."""
WORDS = ("Ray", "worker died", "again", "damaged", "cannot", "refused", "must", "waiting")
HEADER = (
    "| fault | noticed, s | longest pause, s | ended, s | exit codes | lost | doubled | load |\n" + "|---" * 8 + "|"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens in the middle of a launch in a `setting`.

    mend:    what happens before the launch is resumed, if the fault ended it, or if it is to be resumed in any case
    resumes: whether it is, as what it could not tell others waits for that
    """

    strike: Strike
    setting: Callable[[Path], AbstractContextManager[Setting]] = alone
    mend: Strike = lambda _launched: None
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a fault: seconds from it, None for what did not happen.

    noticed_s: to the first line about it
    pause_s:   the longest time without a new trial in the journal, up to the last; with the start of `--resume` where
               the fault ended the launch
    ended_s:   to the end of the launch, if it was resumed
    codes:     exit codes of the launch, and of the resumed one
    load:      of the machine (one minute), when it began and when it ended
    """

    fault: str
    noticed_s: float | None
    pause_s: float
    ended_s: float | None
    codes: tuple[int, ...]
    lost: int
    doubled: int
    load: tuple[float, float]

    @property
    def good(self) -> bool:
        """Whether nothing is lost or doubled, and the launch went on by itself or could be resumed."""
        return self.codes[-1] == 0 and self.lost == 0 and self.doubled == 0

    @property
    def answered_s(self) -> float:
        """Seconds until it went on, or ended with a line that says why."""
        return self.pause_s if self.ended_s is None else self.ended_s

    @property
    def line(self) -> str:
        values = (self.noticed_s, self.pause_s, self.ended_s)
        seconds = " | ".join("-" if value is None else f"{value:.1f}" for value in values)
        codes, load = ", ".join(map(str, self.codes)), " to ".join(f"{value:.1f}" for value in self.load)
        return f"| {self.fault} | {seconds} | {codes} | {self.lost} | {self.doubled} | {load} |"


class Pauses:
    """Looks, in a thread, how long the journal of a launch stays without a new trial."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self.longest_s = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        most, since_s = self._launched.trials().total(), time.monotonic()
        while most < TRIALS:
            time.sleep(0.05)
            if (trials := self._launched.trials().total()) > most:
                self.longest_s = max(self.longest_s, time.monotonic() - since_s)
                most, since_s = trials, time.monotonic()


def run_fault(name: str, fault: Fault, folder: Path, verbose: bool = False) -> Row:
    load = os.getloadavg()[0]
    with fault.setting(folder) as setting:
        launched = Launched(setting)
        until(lambda: launched.trials().total() >= STRIKE_AFTER or launched.process.poll() is not None, LIMIT_S)
        assert launched.process.poll() is None, launched.lines[-20:]
        pauses = Pauses(launched)
        began_s = time.monotonic()
        fault.strike(launched)
        codes, lines = [launched.process.wait(LIMIT_S)], launched.lines
        ended_s = time.monotonic() - began_s if codes[0] or fault.resumes else None
        if ended_s is not None:
            fault.mend(launched)
            launched = Launched(setting, resume=True)
            codes.append(launched.process.wait(LIMIT_S))
        pause_s = pauses.longest_s
        trials, tracked = launched.trials(), launched.tracked()
        said = [(at_s, text) for at_s, text in lines if at_s >= began_s and "(trial " not in text]
        noticed_s = next((at_s - began_s for at_s, text in said if any(word in text for word in WORDS)), None)
    if verbose or codes[-1]:
        sys.stderr.write("".join(f"{at_s - began_s:7.2f} {text}" for at_s, text in said))
    lost = TRIALS - len(trials) + len(set(trials) - set(tracked))
    doubled = sum(count - 1 for counts in (trials, tracked) for count in counts.values())
    return Row(name, noticed_s, pause_s, ended_s, tuple(codes), lost, doubled, (load, os.getloadavg()[0]))
