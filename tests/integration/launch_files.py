"""What Optuna and MLflow hold of a launch, read from their files."""

from pathlib import Path

import optuna
from optuna.trial import TrialState

from chorale.tuner.files.home import Home
from chorale.tuner.search.search import REPEAT_OF, TRIAL_ID
from chorale.tuner.search.storages import open_storage
from chorale.tuner.tracking.mlflow_store import load_mlflow


def optuna_states(folder: Path) -> dict[str, TrialState]:
    """Return the state of every trial of the launch in `folder` that reached an end other than being dropped."""
    storage = open_storage(None, folder / "optuna.journal")
    [study] = optuna.study.get_all_study_names(storage)
    trials = optuna.load_study(study_name=study, storage=storage).get_trials()
    ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    ids = [trial.user_attrs[TRIAL_ID] for trial in ended if REPEAT_OF not in trial.user_attrs]
    assert len(ids) == len(set(ids))
    return {trial.user_attrs[TRIAL_ID]: trial.state for trial in ended if TRIAL_ID in trial.user_attrs}


def tracked_trials(home: Home, experiment: str) -> dict[str, str]:
    """Return the status of the run of every trial in an experiment."""
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = [run for run in client.search_runs([found.experiment_id]) if TRIAL_ID in run.data.tags]
    ids = [run.data.tags[TRIAL_ID] for run in runs]
    assert len(ids) == len(set(ids))
    return {run.data.tags[TRIAL_ID]: run.info.status for run in runs}
