"""Studies of others with our sampler: every kind of parameter, conditions, constraints, priors, what goes wrong."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import Trial, TrialState

from chorale.synth.errors import InvalidInput
from chorale.tuner import SizesSampler
from chorale.tuner.search.history import GAINS, standardized

Objective = Callable[[Trial], float]


def studied(
    sampler: BaseSampler, objective: Objective, trials: int = 12, direction: str = "minimize", **keys: Any
) -> Study:
    study = optuna.create_study(direction=direction, sampler=sampler)
    study.optimize(objective, n_trials=trials, **keys)
    return study


def conditional(trial: Trial) -> float:
    """Two kinds with parameters of their own; the best is 0, at kind b, rate 0.01 and five layers."""
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        return 0.3 + (trial.suggest_float("share", 0, 1) - 0.4) ** 2
    rate = trial.suggest_float("rate", 1e-4, 1, log=True)
    return 0.1 * (math.log10(rate) + 2) ** 2 + 0.02 * (trial.suggest_int("layers", 1, 9) - 5) ** 2


def bowl(trial: Trial) -> float:
    return (trial.suggest_float("x", -5, 5) - 1) ** 2 + (trial.suggest_float("y", -5, 5) + 2) ** 2


@pytest.mark.parametrize("objective", [bowl, pytest.param(conditional, marks=pytest.mark.slow)])
def test_smooth_functions_are_searched_far_better_than_at_random(objective: Objective) -> None:
    ours = [studied(SizesSampler(seed=seed), objective, 20).best_value for seed in range(3)]
    chance = [studied(RandomSampler(seed=seed), objective, 20).best_value for seed in range(3)]
    assert median(ours) < 0.05 * median(chance)


def test_more_is_better_where_a_study_maximizes() -> None:
    assert studied(SizesSampler(seed=0), lambda trial: -bowl(trial), 20, "maximize").best_value > -0.1


@pytest.mark.parametrize("objective", [conditional, bowl])
def test_equal_seeds_give_equal_studies_and_others_do_not(objective: Objective) -> None:
    first, again, other = (studied(SizesSampler(seed=seed), objective, 8) for seed in (5, 5, 6))
    assert [trial.params for trial in first.trials] == [trial.params for trial in again.trials]
    assert [trial.params for trial in first.trials] != [trial.params for trial in other.trials]


KINDS: dict[str, Callable[[Trial], object]] = {
    "name": lambda trial: trial.suggest_categorical("p", ["a", "b", "c"]),
    "numbers": lambda trial: trial.suggest_categorical("p", [1, 2, 4, 8, None]),
    "any choice": lambda trial: trial.suggest_categorical("p", [None, True, "x", 2.5]),
    "negative choices": lambda trial: trial.suggest_categorical("p", [-2, 0, 3.5]),
    "int": lambda trial: trial.suggest_int("p", -3, 12),
    "stepped int": lambda trial: trial.suggest_int("p", 3, 19, step=4),
    "log int": lambda trial: trial.suggest_int("p", 1, 5000, log=True),
    "float": lambda trial: trial.suggest_float("p", -1e-3, 1e6),
    "stepped float": lambda trial: trial.suggest_float("p", 0.1, 0.7, step=0.1),
    "all floats": lambda trial: trial.suggest_float("p", -1.7e308, 1.7e308),
    "log float": lambda trial: trial.suggest_float("p", 1e-12, 1e3, log=True),
    "one value": lambda trial: trial.suggest_float("p", 2.0, 2.0),
    "one name": lambda trial: trial.suggest_categorical("p", ["only"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_parameter_gets_values_that_optuna_takes(kind: str) -> None:
    """Optuna draws again, with a warning that fails this, where a sampler's value is not in the distribution."""

    def objective(trial: Trial) -> float:
        value = KINDS[kind](trial)
        return trial.suggest_float("x", 0, 1) + (0.1 if value in (None, "a") else 0.0)

    study = studied(SizesSampler(seed=1), objective, 8)
    for trial in study.trials:
        assert trial.distributions["p"]._contains(trial.distributions["p"].to_internal_repr(trial.params["p"]))
    assert len({trial.params["p"] for trial in study.trials}) > 1 or kind.startswith("one")


def test_a_small_grid_is_tried_once_before_anything_is_tried_again() -> None:
    def objective(trial: Trial) -> float:
        return trial.suggest_int("n", 1, 3) * (1 if trial.suggest_categorical("c", ["a", "b"]) == "a" else 2)

    study = studied(SizesSampler(seed=0), objective, 8)
    assert len({tuple(sorted(trial.params.items())) for trial in study.trials[:6]}) == 6


def test_parameters_that_depend_on_numbers_and_ranges_that_change() -> None:
    def objective(trial: Trial) -> float:
        layers = trial.suggest_int("layers", 1, 3)
        widths = [trial.suggest_int(f"width{layer}", 1, 4 * layers) for layer in range(layers)]
        return float(sum(widths)) + trial.suggest_float("last", 0, 1 + widths[0])

    study = studied(SizesSampler(seed=2), objective, 15)
    assert all(len(trial.params) == 2 + trial.params["layers"] for trial in study.trials)
    assert study.best_value < 3


def test_what_a_study_is_handed_stays_as_it_is() -> None:
    study = optuna.create_study(sampler=SizesSampler(seed=0))
    study.enqueue_trial({"kind": "b", "layers": 7})
    study.optimize(conditional, n_trials=4)
    study.enqueue_trial({"kind": "b", "rate": 0.5})
    study.optimize(conditional, n_trials=1)
    assert study.trials[0].params["layers"] == 7
    assert study.trials[4].params["rate"] == 0.5


def test_failed_and_pruned_trials_keep_the_search_away() -> None:
    def objective(trial: Trial) -> float:
        x, kind = trial.suggest_float("x", 0, 1), trial.suggest_categorical("kind", ["good", "fails", "pruned"])
        trial.report(5.0, 1)
        if kind == "fails":
            raise OSError("on purpose")
        if kind == "pruned":
            raise optuna.TrialPruned
        return x

    study = studied(SizesSampler(seed=3), objective, 20, catch=(OSError,))
    states = [trial.state for trial in study.trials]
    assert {TrialState.FAIL, TrialState.PRUNED, TrialState.COMPLETE} == set(states)
    assert states[10:].count(TrialState.COMPLETE) >= 8


def test_only_failures_do_not_end_a_study() -> None:
    def objective(trial: Trial) -> float:
        trial.suggest_float("x", 0, 1)
        return math.nan

    assert len(studied(SizesSampler(seed=0), objective, 4).trials) == 4


def test_what_breaks_constraints_is_left_alone() -> None:
    """The best value without the constraint, at x = 1, breaks it."""

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("half", x - 0.5)
        trial.suggest_float("y", 0, 1)
        return x

    study = studied(SizesSampler(seed=0), objective, 20, "maximize")
    assert 0.47 < study.best_value <= 0.5
    assert sum(trial.params["x"] <= 0.6 for trial in study.trials[6:]) >= 10


def test_before_anything_is_feasible_the_search_looks_for_that() -> None:
    def objective(trial: Trial) -> float:
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        trial.set_constraint("corner", 0.15 - x * y)
        trial.set_constraint("other", -1e9)
        return x + y

    study = optuna.create_study(sampler=SizesSampler(seed=0))
    for x in (0.0, 0.1, 0.2):
        study.enqueue_trial({"x": x, "y": 0.3})
    study.optimize(objective, n_trials=8)
    assert any(trial.constraints["corner"] <= 0 for trial in study.trials)


def test_constraints_of_any_size_and_before_any_parameter() -> None:
    def objective(trial: Trial) -> float:
        trial.set_constraint("early", math.inf if trial.number % 3 == 0 else -math.inf)
        if trial.number % 3 == 0:
            raise optuna.TrialPruned
        trial.set_constraint("zero", 0.0)
        return trial.suggest_float("x", 0, 1)

    assert len(studied(SizesSampler(seed=0), objective, 9).trials) == 9


def test_trials_under_way_are_not_chosen_again() -> None:
    study = optuna.create_study(sampler=SizesSampler(seed=0))
    study.optimize(lambda trial: float(trial.suggest_int("n", 1, 8)), n_trials=3)
    running = [study.ask() for _ in range(5)]
    assert [trial.relative_params for trial in running]  # chosen, and not yet asked for
    chosen = [trial.suggest_int("n", 1, 8) for trial in running]
    assert len({*chosen, *(trial.params["n"] for trial in study.trials[:3])}) == 8


def test_several_threads_and_a_database(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, sampler=SizesSampler(seed=0), direction="minimize")
    study.optimize(bowl, n_trials=8, n_jobs=2)
    assert len({(trial.params["x"], trial.params["y"]) for trial in study.trials}) == 8
    study._storage.remove_session()


def test_a_sampler_is_pickled_with_what_it_knows() -> None:
    sampler = SizesSampler(seed=0, prior=[({"x": 1.0, "y": -2.0}, 0.0)])
    studied(sampler, bowl, 4)
    assert studied(pickle.loads(pickle.dumps(sampler)), bowl, 4).trials


SIZES = (2**10, 2**20)


def by_size(trial: Trial) -> float:
    """Small x is best for small messages, large x for large ones; their mean is best in the middle."""
    x = trial.suggest_int("x", 0, 30) / 30
    gains = {SIZES[0]: 0.5 - x, SIZES[1]: x - 0.5}
    trial.set_user_attr(GAINS, gains)
    return sum(gains.values()) - 0.1 * (x - 0.5) ** 2


def test_gains_by_size_are_searched_for_the_best_of_each_size() -> None:
    study = studied(SizesSampler(seed=0), by_size, 8, "maximize")
    assert {0, 30} <= {trial.params["x"] for trial in study.trials}


def test_a_size_without_weight_is_not_searched_for() -> None:
    study = studied(SizesSampler(seed=0, weights={SIZES[0]: 1e-6}), by_size, 10, "maximize")
    assert sum(trial.params["x"] > 15 for trial in study.trials[2:]) >= 6


PAIRS = [
    ({"x": float(x), "y": float(y)}, (x - 1) ** 2 + (y + 2) ** 2 + 7.0) for x in range(-4, 5, 2) for y in (-4, 0, 4)
]


def prior_study() -> Study:
    study = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=1))
    study.optimize(lambda trial: 3 - bowl(trial), n_trials=25)
    return study


PRIORS: dict[str, Callable[[], Any]] = {
    "pairs": lambda: PAIRS,
    "mapping": lambda: {tuple(point.items()): value for point, value in PAIRS},
    "study": prior_study,
}


@pytest.mark.parametrize(
    "kind", ["study", *(pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(PRIORS.keys() - {"study"}))]
)
def test_a_prior_says_where_to_begin_and_what_to_expect(kind: str) -> None:
    warm = [studied(SizesSampler(seed=seed, prior=PRIORS[kind]()), bowl, 8).best_value for seed in range(3)]
    cold = [studied(SizesSampler(seed=seed), bowl, 8).best_value for seed in range(3)]
    assert median(warm) < median(cold)


@pytest.mark.slow
def test_a_prior_that_is_wrong_costs_little() -> None:
    wrong = [(point, -value) for point, value in PAIRS]
    assert median(studied(SizesSampler(seed=seed, prior=wrong), bowl, 20).best_value for seed in range(3)) < 0.5


def test_a_prior_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a prior must be a study, or pairs"):
        SizesSampler(prior=[1.0, 2.0])  # type: ignore[list-item]


def test_two_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=SizesSampler(seed=0))
    with pytest.raises(ValueError, match="multi-objective"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 0.0), n_trials=1)
    assert not study.trials[0].params


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e300, math.inf])
def test_values_of_any_scale(scale: float) -> None:
    study = studied(SizesSampler(seed=0), lambda trial: scale * (0.1 + trial.suggest_float("x", 0, 1)), 6)
    assert len({trial.params["x"] for trial in study.trials}) == 6


def test_hyperband_sees_its_bracket_only() -> None:
    def objective(trial: Trial) -> float:
        value = bowl(trial)
        for step in range(1, 5):
            trial.report(value + 1 / step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.HyperbandPruner(1, 4, 2)
    study = optuna.create_study(study_name="brackets", sampler=SizesSampler(seed=0), pruner=pruner)  # names choose them
    study.optimize(objective, n_trials=15)
    assert study.direction == StudyDirection.MINIMIZE
    assert study.best_value < 5


def test_values_are_standardized_by_what_most_of_them_are_like() -> None:
    gains = standardized(np.array([1.0, 2.0, 3.0, 4.0, -1e12]))
    assert gains.max() == 0
    assert gains.min() < gains[0] < gains[1] - 0.01
    assert not standardized(np.full(3, 7.0)).any()
