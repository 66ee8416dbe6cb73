"""What is expected of the points of somebody else's study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.study import Study, StudyDirection
from optuna.trial import TrialState

from chorale.synth.errors import InvalidInput
from chorale.tuner.search.history import gains_by_size, standardized
from chorale.tuner.search.points import ParameterPoint, ParameterSpace
from chorale.tuner.search.prior import Prior, PriorMix
from chorale.tuner.search.size_model import Floats, SizeModel

Expected = float | Mapping[int, float]
"""A value of the objective, or gains by size."""

PriorValues = Mapping[Any, Expected] | Iterable[tuple[Mapping[str, Any], Expected]]

MOST = 200
"""Expected values that count; of more, evenly from the best to the worst."""


@dataclass(frozen=True, slots=True)
class _Entry:
    parameters: Mapping[str, Any]
    value: float
    gains: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class StudyPrior:
    """Expected values of some parameters; those of others are predicted from them.

    maximize: whether more is better in `entries`; None: as in the study that is searched
    """

    entries: Sequence[_Entry]
    maximize: bool | None
    _fitted: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    @staticmethod
    def of(source: Study | PriorValues, attribute: str) -> StudyPrior:
        """Return what a study says, or pairs, or a mapping; InvalidInput for what is neither."""
        if isinstance(source, Study):
            return StudyPrior(_of_study(source, attribute), source.direction == StudyDirection.MAXIMIZE)
        pairs = source.items() if isinstance(source, Mapping) else source
        try:
            entries = [_Entry(dict(parameters), _mean(value), gains_by_size(value)) for parameters, value in pairs]
        except (TypeError, ValueError) as error:
            rule = "a prior must be a study, or pairs of parameters and a number or gains by size"
            raise InvalidInput(rule, error, 'give pairs such as ({"x": 1.0}, 0.3)') from None
        return StudyPrior(entries, None)

    def starts(self, maximize: bool) -> list[Mapping[str, Any]]:
        """Return the parameters to try first."""
        if not self.entries:
            return []
        sizes = tuple(sorted(self.entries[0].gains))
        rows = self._rows(sizes, maximize)
        order = sorted(range(len(rows)), key=lambda number: -float(rows[number].mean()))
        known = PriorMix([Prior({number: rows[number] for number in order})], order)
        return [self.entries[number].parameters for number in known.starts()]

    def over(
        self, space: ParameterSpace, points: Sequence[ParameterPoint], sizes_bytes: tuple[int, ...], maximize: bool
    ) -> PriorMix | None:
        """Return the gains that are expected of `points`; None where nothing is known about any."""
        rows = self._rows(sizes_bytes, maximize)
        pairs = zip((space.point(entry.parameters) for entry in self.entries), rows, strict=True)
        known = {point: row for point, row in pairs if any(number is not None for number in point)}
        best_first = sorted(known, key=lambda point: -float(known[point].mean()))
        chosen = best_first[:: -(-len(known) // MOST) or 1]
        if not chosen:
            return None
        values = np.array([known[point] for point in chosen])
        key = (*space.distributions, *sizes_bytes, len(chosen))
        sources = np.arange(len(points), len(points) + len(chosen))
        model = SizeModel(space.axes([*points, *chosen]), sizes_bytes or (1,), self._fitted.get(key))
        middle = values.mean(axis=0)
        if key not in self._fitted:
            model.fit(sources, values - middle)
            self._fitted[key] = model.parameters
        sizes = np.eye(values.shape[1])
        mean = model.posterior(sources, values - middle, np.arange(len(points)), sizes).mean + middle
        return PriorMix([Prior(dict(zip(points, mean, strict=True)))], points)

    def _rows(self, sizes_bytes: Sequence[int], maximize: bool) -> Floats:
        """Return gains of the entries, (entries, sizes): theirs, or the value as far as it tells them apart."""
        sign = 1.0 if (maximize if self.maximize is None else self.maximize) else -1.0
        if sizes_bytes and all(set(sizes_bytes) <= set(entry.gains) for entry in self.entries):
            return np.array([[entry.gains[size] for size in sizes_bytes] for entry in self.entries])
        values = np.array([entry.value if entry.gains else sign * entry.value for entry in self.entries])
        return np.repeat(standardized(values)[:, None], max(len(sizes_bytes), 1), axis=1)


def _of_study(study: Study, attribute: str) -> list[_Entry]:
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [_Entry(one.params, float(one.values[0]), gains_by_size(one.user_attrs.get(attribute))) for one in trials]


def _mean(value: Expected) -> float:
    return float(np.mean(list(value.values()))) if isinstance(value, Mapping) else float(value)
