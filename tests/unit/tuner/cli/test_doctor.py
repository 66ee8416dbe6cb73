"""`chorale doctor` names what is missing and how to get it."""

from __future__ import annotations

from tests.command import chorale
from tests.stand_ins.gpu_cluster import put_stand_ins


def checks(document):
    return {check["name"]: check for check in document["checks"]}


def test_a_ready_machine(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    done = chorale(capsys, "doctor", "--json")
    assert done.code == 0
    assert done.document["ready"] is True
    found = checks(done.document)
    assert {"python", "ray", "mlflow", "g++", "user namespaces", "fabrics", "data folder"} <= set(found)
    assert found["ray"]["ok"]


def test_missing_tools_are_named_with_a_way_to_get_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = chorale(capsys, "doctor", "--json")
    assert done.code == 0
    for name in ("g++", "ip", "gpus", "gpu launcher", "nccl-tests", "user namespaces", "fabrics"):
        check = checks(done.document)[name]
        assert not check["ok"]
        assert check["way_out"]


def test_a_folder_that_cannot_be_written_is_exit_code_3(capsys, tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("CHORALE_HOME", str(blocker / "data"))
    done = chorale(capsys, "doctor", "--json")
    assert done.code == 3
    assert not checks(done.document)["data folder"]["ok"]
    assert chorale(capsys, "doctor").code == 3


def test_a_gpu_node_is_recognised_by_its_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    put_stand_ins(tmp_path / "stand-ins")
    (tmp_path / "stand-ins" / "rocm-smi").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "stand-ins"))
    found = checks(chorale(capsys, "doctor", "--json").document)
    assert found["gpus"]["found"].endswith("/rocm-smi")
    assert all(found[name]["ok"] for name in ("gpus", "gpu launcher", "nccl-tests"))
