"""`chorale export`: a folder that holds everything, says what it is, and touches nothing else."""

import hashlib
import json
import os
import subprocess
import sys

from chorale.synth.targets.lift import lift
from tests.command import chorale


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_job_in_both_dialects_for_both_launchers(capsys, tmp_path, schedule):
    job, again = tmp_path / "job", tmp_path / "again"
    path = schedule("forest", "a100:2", "allgather")
    document = chorale(capsys, "export", path, "-o", job, "--json").document
    files = contents(job)
    assert sorted(files) == document["files"]
    folders = {f"{runtime}-{launcher}" for runtime in ("msccl", "executor", "rccl") for launcher in ("mpirun", "srun")}
    assert {name.split("/")[0] for name in files} == folders | {"README.md", "manifest.json"}
    for folder in folders:
        assert f"({folder}/README.md)".encode() in files["README.md"]
        assert b"Did it run?" in files[f"{folder}/README.md"]
        assert f"{folder}/environment/proof.sh" in files
        assert os.access(job / folder / "run.sh", os.X_OK)
    assert b"ppr:8:node" in files["msccl-mpirun/run.sh"]  # 16 ranks in two boxes
    assert b"--nodes=2" in files["executor-srun/job.sbatch"]
    assert chorale(capsys, "export", path, "-o", again).code == 0
    assert contents(again) == files


def test_the_manifest_says_what_everything_is(capsys, tmp_path, schedule):
    job, path = tmp_path / "job", schedule()
    assert chorale(capsys, "export", path, "-o", job, "--channels", 2, "--sizes", "1MiB,1M", "--quiet").code == 0
    manifest, files = json.loads((job / "manifest.json").read_text()), contents(job)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != "manifest.json"}
    assert manifest["files"] == hashes
    assert manifest["topology"]["spec"] == "hypercube:3"
    assert manifest["schedule"]["id"] == chorale(capsys, "show", path, "--json").document["schedule"]["id"]
    checks = {"schedule": "replayed chunk by chunk", "programs": "read back and executed symbolically"}
    assert manifest["verification"] == {what: f"{how}: right" for what, how in checks.items()}
    assert len(manifest["jobs"]) == 6
    for one in manifest["jobs"]:
        text = files[f"{one['folder']}/algorithms/program.xml"]
        assert hashlib.sha256(text).hexdigest() == one["program"]["id"]
        assert (lift(text).channels, one["program"]["resources"]["channels"]) == (2, 2)
        (size_bytes,) = manifest["sizes_bytes"]
        assert size_bytes % (4 * one["program"]["chunks"]) == 0


def test_a_job_for_cpus_runs(capsys, tmp_path, schedule):
    job = tmp_path / "job"
    options = ("--target", "oneccl-xml", "--sizes", "64KiB", "--quiet")
    assert chorale(capsys, "export", schedule("ring", "ring:3"), "-o", job, *options).code == 0
    own = {f"oneccl/{name}" for name in ("program.xml", "run.sh", "README.md")}
    assert set(contents(job)) == {"README.md", "manifest.json", *own}
    assert b"chorale lift program.xml --spec ring:3" in (job / "oneccl/README.md").read_bytes()
    command = tmp_path / "bin" / "chorale"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m chorale "$@"\n')
    command.chmod(0o755)
    environment = dict(os.environ) | {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    arguments = [job / "oneccl/run.sh", "simulated", "--link-mbps", "1000", "--json"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["correct"] is True


def test_a_program_is_taken_as_it_is(capsys, tmp_path, schedule):
    program, job = tmp_path / "program.xml", tmp_path / "job"
    options = ("--target", "msccl-executor-xml", "--instances", 2)
    assert chorale(capsys, "lower", schedule(), *options, "-o", program).code == 0
    assert chorale(capsys, "export", program, "-o", job).code == 0
    assert (job / "executor-mpirun/algorithms/program.xml").read_bytes() == program.read_bytes()
    assert not (job / "msccl-mpirun").exists()
    assert json.loads((job / "manifest.json").read_text())["schedule"] is None
    refused = chorale(capsys, "export", program, "-o", tmp_path / "other", "--target", "msccl-xml")
    assert (refused.code, "program cannot be exported for" in refused.stderr) == (2, True)


def test_folders_that_hold_something_are_left_alone(capsys, tmp_path, schedule):
    path, job = schedule(), tmp_path / "job"
    job.mkdir()
    (job / "notes.txt").write_text("mine")
    assert "is not empty" in chorale(capsys, "export", path, "-o", job, code=2).stderr
    assert set(contents(job)) == {"notes.txt"}
    assert chorale(capsys, "export", path, "-o", job, "--force").code == 0
    assert (job / "notes.txt").read_text() == "mine"
    assert (job / "manifest.json").exists()
    elsewhere, other = tmp_path / "elsewhere", tmp_path / "other"
    elsewhere.mkdir()
    other.mkdir()
    (other / "msccl-srun").symlink_to(elsewhere)
    refused = chorale(capsys, "export", path, "-o", other, "--force")
    assert (refused.code, "is a link that leads outside the output folder" in refused.stderr) == (2, True)
    assert contents(elsewhere) == {}
    assert not (other / "manifest.json").exists()
    assert chorale(capsys, "export", path, "-o", path).code == 2


def test_a_default_target_that_the_program_does_not_fit_is_left_out(capsys, tmp_path):
    ring, job = tmp_path / "ring.parquet", tmp_path / "job"
    assert chorale(capsys, "synth", "ring", "h100:4", "-o", ring).code == 0
    done = chorale(capsys, "export", ring, "-o", job, code=0)
    assert "left out: a program must fit msccl-executor-xml" in done.stderr
    assert chorale(capsys, "export", ring, "-o", tmp_path / "other", "--target", "msccl-executor-xml").code == 2
    path, job = tmp_path / "alltoall.parquet", tmp_path / "out-of-place"
    assert chorale(capsys, "synth", "alltoall", "ring:4", "--collective", "alltoall", "-o", path).code == 0
    assert chorale(capsys, "export", path, "-o", job, "--target", "msccl-xml").code == 0
    assert not lift((job / "msccl-srun/algorithms/program.xml").read_bytes()).in_place
