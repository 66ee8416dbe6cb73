"""Objects of Optuna in place of the sampler, the pruner and the storage that a campaign names, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.search.sizes_sampler import SizesSampler

Callback = Callable[[Study, FrozenTrial], object]
"""Called with the study and the trial that ended, as Optuna does; it may call `study.stop()`."""

_KINDS: Mapping[str, type] = {"sampler": BaseSampler, "pruner": BasePruner, "storage": BaseStorage}


@dataclass(frozen=True, slots=True)
class StudyParts:
    """What others plug into a study. None: as the campaign says.

    pruner: decides after each size of a trial, which then are measured one after the other; in place of racing
    """

    sampler: BaseSampler | None = None
    pruner: BasePruner | None = None
    storage: BaseStorage | None = None
    callbacks: tuple[Callback, ...] = ()

    @staticmethod
    def of(
        values: Mapping[str, Any], callbacks: Iterable[Callback] | Callback = ()
    ) -> tuple[StudyParts, dict[str, str]]:
        """Return the objects among `values` of sampler, pruner and storage, and the names, for a campaign.

        InvalidInput for what is neither.
        """
        names = {key: value for key, value in values.items() if isinstance(value, str)}
        objects = {key: value for key, value in values.items() if value is not None and key not in names}
        for key, value in objects.items():
            if not isinstance(value, _KINDS[key]):
                way_out = f"give a name, or an instance of a class of optuna.{key}s"
                raise InvalidInput(f"`{key}` must be a name or an Optuna object", repr(value), way_out)
        chosen = (callbacks,) if callable(callbacks) else tuple(callbacks)
        for callback in chosen:
            if not callable(callback):
                raise InvalidInput("`callbacks` must be callable", repr(callback), "give functions of study and trial")
        return StudyParts(**objects, callbacks=chosen), names

    @property
    def names(self) -> dict[str, str]:
        """The classes of sampler and pruner, where they are objects."""
        objects = {"sampler": self.sampler, "pruner": self.pruner}
        return {key: type(value).__name__ for key, value in objects.items() if value is not None}

    @property
    def prunes(self) -> bool:
        """Whether a pruner decides after each size."""
        return self.pruner is not None and not isinstance(self.pruner, NopPruner)

    def check(self, campaign: Campaign) -> None:
        """Raise InvalidInput where the objects do not fit the campaign."""
        if self.sampler is not None and campaign.stop is not None:
            rule = "`stop` needs the sampler sizes-gp, whose model says what to expect"
            raise InvalidInput(rule, type(self.sampler).__name__, "leave one of them out, or stop from a callback")
        if campaign.second_objective != "none" and (self.prunes or isinstance(self.sampler, SizesSampler)):
            rule = "pruners and SizesSampler decide by one objective"
            raise InvalidInput(rule, campaign.second_objective, "leave them or `second_objective` out")


class LaunchStudy(Study):
    """A study whose trials a launch runs: `stop`, by callbacks and samplers, lets it start no more."""

    is_stopped = False

    def stop(self) -> None:
        """End the search once the pending trials are done."""
        self.is_stopped = True


def call_back(callbacks: Iterable[Callback], study: Study, trial: FrozenTrial) -> None:
    """Call each of `callbacks`. CheckFailed, with its cause, where one of them fails."""
    for callback in callbacks:
        try:
            callback(study, trial)
        except Exception as error:
            name = getattr(callback, "__name__", type(callback).__name__)
            way_out = "mend it, then go on with resume: the launch's journal has every trial"
            value = f"{name}: {type(error).__name__}: {error}"
            raise CheckFailed("callbacks must not raise", value, way_out) from error
