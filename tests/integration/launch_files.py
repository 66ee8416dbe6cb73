"""What Optuna and MLflow hold of a launch, read from their files."""

from chorale.tuner.files.home import Home
from chorale.tuner.search.search import TRIAL_ID
from chorale.tuner.tracking.mlflow_store import load_mlflow


def tracked_trials(home: Home, experiment: str) -> dict[str, str]:
    """Return the status of the run of every trial in an experiment."""
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = [run for run in client.search_runs([found.experiment_id]) if TRIAL_ID in run.data.tags]
    ids = [run.data.tags[TRIAL_ID] for run in runs]
    assert len(ids) == len(set(ids))
    return {run.data.tags[TRIAL_ID]: run.info.status for run in runs}
