"""Noise that replayed measurements get: factors on recorded times, fixed by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.names import unknown_name

Floats = NDArray[np.float64]

NOISES = ("none", "lognormal:0.05", "lognormal:0.15", "outliers", "drift", "bimodal", "launch")

BASE = 0.02  # deviation of single repetitions in all kinds that are about something else
OUTLIER_SHARE, OUTLIER_SCALE = 0.1, 0.5
DRIFT, DRIFT_LAUNCHES = 0.2, 60.0
SLOW_SHARE, SLOW_FACTOR = 0.3, 1.2
LAUNCH_DEVIATION = 0.05


@dataclass(frozen=True, slots=True)
class Noise:
    """A kind of noise.

    none:        times as they are
    lognormal:S  every repetition on its own, the logarithm with deviation S
    outliers:    2 %, and one repetition in ten takes longer by a factor of 1 + 0.5 / u, u uniform: no mean exists
    drift:       2 %, and everything speeds up and slows down together by 20 %, in waves of 60 launches
    bimodal:     2 %, and in three of ten launches a program is in a mode that takes 1.2 times as long
    launch:      2 %, and every launch of a program has a factor of its own, the logarithm with deviation 5 %

    Factors of modes and launches are drawn for every size on its own.
    """

    kind: str
    deviation: float = BASE

    @staticmethod
    def parse(text: str) -> Noise:
        """Return the noise called `text`; InvalidInput for another name."""
        kind, _, number = text.partition(":")
        if kind == "lognormal":
            try:
                deviation = float(number)
            except ValueError:
                deviation = -1.0
            if 0 < deviation <= 1:
                return Noise(kind, deviation)
        elif text in NOISES:
            return Noise(kind, 0.0 if kind == "none" else BASE)
        raise unknown_name("noise", text, NOISES)

    def draw(self, times_s: Floats, repeats: int, launch: int, random: np.random.Generator) -> Floats:
        """Return seconds of the repetitions (…, repeats) of one launch of programs with `times_s` (programs, sizes).

        launch: number of the launch, for what changes with time
        """
        shape = (*times_s.shape, repeats)
        logarithms = random.normal(0.0, self.deviation, shape) if self.deviation else np.zeros(shape)
        if self.kind == "outliers":
            longer = np.log1p(OUTLIER_SCALE / random.uniform(1e-3, 1.0, shape))
            logarithms += np.where(random.uniform(size=shape) < OUTLIER_SHARE, longer, 0.0)
        elif self.kind == "drift":
            logarithms += DRIFT * np.sin(2 * np.pi * (launch + np.arange(repeats) / repeats) / DRIFT_LAUNCHES)
        elif self.kind == "bimodal":
            slow = random.uniform(size=(*times_s.shape, 1)) < SLOW_SHARE
            logarithms += np.where(slow, np.log(SLOW_FACTOR), 0.0)
        elif self.kind == "launch":
            logarithms += random.normal(0.0, LAUNCH_DEVIATION, (*times_s.shape, 1))
        return np.asarray(times_s[..., None] * np.exp(logarithms))
