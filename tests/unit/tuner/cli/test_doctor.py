"""`chorale doctor` names what is missing and how to get it."""

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.command import chorale
from tests.serving import served

NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens there


def checks(document):
    return {check["name"]: check for check in document["checks"]}


def parts(document):
    return {part["name"]: part for part in document["parts"]}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The library for MPI programs is there: building it takes seconds, and is another test's."""
    monkeypatch.setattr("chorale.tuner.cli.doctor.preload_library", lambda: "built")
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))


def test_a_ready_machine(capsys, tmp_path):
    done = chorale(capsys, "doctor", "--json", code=0)
    assert done.document["ready"] is True
    found = checks(done.document)
    assert {"python", "ray", "mlflow", "g++", "user namespaces", "fabrics", "data folder"} <= set(found)
    assert found["ray"]["ok"]
    usable = parts(done.document)
    assert set(usable) == {"local", "nccl", "device", "oneccl", "mpi", "msccl", "fabric", "ray", "mlflow", "service"}
    for name in ("local", "ray", "mlflow"):
        assert usable[name]["usable"]
        assert (usable[name]["missing"], usable[name]["mend"]) == ([], "")
    assert done.document["mpi_preload"] == "built"
    assert list(tmp_path.iterdir()) == []


def test_missing_tools_are_named_with_a_way_to_get_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = chorale(capsys, "doctor", "--json", code=0)
    for name in ("g++", "ip", "gpus", "gpu launcher", "nccl-tests", "user namespaces", "fabrics"):
        check = checks(done.document)[name]
        assert not check["ok"]
        assert check["way_out"]
    unusable = parts(done.document)
    assert unusable["fabric"]["missing"] == ["ip", "tc", "fabrics"]
    assert unusable["fabric"]["mend"] == "apt-get install iproute2"
    assert "g++" in unusable["oneccl"]["missing"]
    assert unusable["msccl"]["missing"] == ["gpus"]
    assert not any(unusable[name]["usable"] for name in ("fabric", "oneccl", "msccl"))


def test_servers_that_do_not_answer_are_named(capsys, tmp_path, monkeypatch):
    """A campaign cannot run on a cluster that is not there; it can without MLflow, which hears of it later."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    mlflow = parts(chorale(capsys, "doctor", "--json", code=0).document)["mlflow"]
    assert (mlflow["usable"], mlflow["mend"]) == (False, "unset MLFLOW_TRACKING_URI")
    monkeypatch.setenv("RAY_ADDRESS", NOWHERE.removeprefix("http://"))
    done = chorale(capsys, "doctor", "--json")
    assert (done.code, done.document["ready"]) == (3, False)
    ray = parts(done.document)["ray"]
    assert (ray["missing"], ray["mend"]) == (["ray cluster"], "unset RAY_ADDRESS")


def test_a_gpu_node_is_recognised_by_its_commands_and_a_data_folder_that_cannot_be_is_named(
    capsys, tmp_path, monkeypatch
):
    (tmp_path / "stand-ins").mkdir()
    for name in ("rocm-smi", "mpirun", "all_reduce_perf"):
        (tmp_path / "stand-ins" / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "stand-ins"))
    document = chorale(capsys, "doctor", "--json").document
    found = checks(document)
    assert found["gpus"]["found"].endswith("/rocm-smi")
    assert all(found[name]["ok"] for name in ("gpus", "gpu launcher", "nccl-tests"))
    assert parts(document)["msccl"]["usable"]
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "file" / "data"))
    assert not checks(chorale(capsys, "doctor", "--json", code=3).document)["data folder"]["ok"]
    assert chorale(capsys, "doctor").code == 3


def test_servers_that_answer_are_named(capsys, monkeypatch):
    routes = [Route("/{path:path}", lambda _: JSONResponse({}), methods=["GET", "POST"])]
    with served(Starlette(routes=routes)) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("RAY_ADDRESS", address.removeprefix("http://"))
        found = parts(chorale(capsys, "doctor", "--json").document)
    assert [found[name]["missing"] for name in ("ray", "mlflow", "service")] == [[], [], []]
