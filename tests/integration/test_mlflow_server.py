"""A campaign against a real MLflow server, which dies in the middle and comes back."""

import pytest

from chorale.runners.api.base import RunRequest
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import load_best
from tests.campaigns import small_campaign
from tests.fakes import FakeRunner
from tests.integration.mlflow_server import address, kill_group, server
from tests.unit.tuner.launch.test_tuning import run
from tests.waiting import free_port


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back_hears_of_every_trial_once(home, capsys):
    port = free_port()
    uri = address(home, port)
    campaign = small_campaign(tracking={"mlflow_uri": uri})
    with server(home, port) as process:
        requests: list[RunRequest] = []

        def kill_in_the_middle(request: RunRequest) -> None:
            requests.append(request)
            if len(requests) == 3:
                kill_group(process)

        broken = run(home, campaign, runner=FakeRunner(kill_in_the_middle))
    assert len(broken.trials) == 6
    assert broken.tracked.problem is not None
    with server(home, port):
        whole = run(home, campaign, resume=True, runner=FakeRunner())
        assert whole.trials == broken.trials
        assert whole.tracked.problem is None
        assert set(whole.tracked.run_ids) == {trial.trial_id for trial in whole.trials}
        mlflow = MlflowStore(uri, home.artifacts)
        experiment_id = mlflow.experiment("small")
        runs = mlflow.runs(experiment_id, "chorale.launch_id", whole.launch.launch_id, "chorale.trial_id")
        assert {trial_id: run.run_id for trial_id, run in runs.items()} == whole.tracked.run_ids
        best = load_best(mlflow, load_topology("ring:4"), "allreduce", 4096)
        assert best.version.version == "1"
        assert list(home.artifacts.rglob("schedule.parquet"))  # uploaded through the server
    assert capsys.readouterr().out == ""  # MLflow would print addresses where one JSON document is promised
