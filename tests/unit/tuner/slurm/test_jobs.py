"""Profiles of sites, jobs and their scripts, which a shell really executes, and how submitted jobs are followed."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import chorale.tuner.slurm.jobs as submission
from chorale.runners.api.registry import runner_config
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.slurm.jobs import (
    JobShape,
    SlurmJob,
    SlurmProfile,
    SubmittedJob,
    follow,
    job_shape,
    limit_minutes,
    load_profile,
    submitted,
)
from tests.command import chorale

PROFILE = """\
partition: gpu
account: lab
time: 2h
constraint: a100
sbatch: ["--comment=two words"]
prologue: [module load nccl]
"""


CAMPAIGN = """\
name: c
topology: ring:4
collective: allreduce
sizes: [64KiB]
runner: {kind: simulated}
search: {methods: [ring]}
"""


def test_a_profile_becomes_requests(tmp_path, monkeypatch):
    path = tmp_path / "site.yaml"
    path.write_text(PROFILE)
    requests = ["--partition=gpu", "--account=lab", "--time=120", "--constraint=a100", "--comment=two words"]
    assert load_profile(str(path)).requests() == requests
    monkeypatch.setenv("CHORALE_SLURM", str(path))
    assert load_profile(None, time="30min").time == "30"
    monkeypatch.delenv("CHORALE_SLURM")
    assert load_profile(None).requests() == []
    limits = ("90", "1:30", "2:00:00", "1-12", "1-00:30", "2-1:2:30")
    assert [limit_minutes(text) for text in limits] == pytest.approx([90, 1.5, 120, 36 * 60, 24 * 60 + 30, 2942.5])
    with pytest.raises(InvalidInput, match="the job needs a task for each of 4 ranks, it has 2 nodes of 1"):
        job_shape(runner_config("mpi", {}), load_topology("ring:4"), SlurmProfile(nodes=2, tasks_per_node=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: gpu", "key `partitoin` of the profile of a site: Extra inputs are not permitted"),
        ("time: soon", "a time limit is written as 90min"),
        ("time: 3", "`time` should be at least twice the 120 s of `stop_s`"),
        ("sbatch: [qos=short]", "`sbatch` should contain options, which begin with `-`: qos=short"),
        ("partition: 'a b'", "the value should be one word"),
        ('prologue: ["a\\nb"]', "key `prologue.0`"),
        ("- 1", "does not map keys to values"),
        ("a: [", "must be valid YAML"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        load_profile(str(path))
    assert message in str(refused.value)


def test_jobs_ask_for_what_the_runner_needs():
    for runner, options, spec, profile, shape in (
        ("nccl", {}, "a100:1", {}, JobShape(1, 8, 8)),
        ("msccl", {"launcher": "openmpi"}, "a100:2", {}, JobShape(2, 8, 8)),
        ("msccl", {"launcher": "ray"}, "a100:2", {"gpus_per_node": 0}, JobShape(2, 8, 0, ray=True)),
        ("msccl", {"hosts": "n3,n1", "launcher": "srun"}, "ring:8", {}, JobShape(2, 4, 4, ("n3", "n1"))),
        ("mpi", {}, "ring:4", {}, JobShape(4, 1)),
        ("mpi", {}, "ring:4", {"nodes": 2}, JobShape(2, 2)),
        ("mpi", {"hosts": "n3,n2"}, "ring:8", {}, JobShape(2, 4, hosts=("n3", "n2"))),
        ("oneccl", {"where": "cluster"}, "ring:4", {}, JobShape(4, 1, ray=True)),
        ("simulated", {}, "torus:4x4", {}, JobShape(1, 1)),
    ):
        asked = SlurmProfile.model_validate(profile)
        assert job_shape(runner_config(runner, options), load_topology(spec), asked) == shape


def _profile(folder: Path, *prologue: str) -> SlurmProfile:
    return SlurmProfile(command=str(folder / "chorale"), prologue=[f"cd {folder}", *prologue])


def _job(folder: Path, arguments: tuple[str, ...], **changes: Any) -> SlurmJob:
    return SlurmJob("chorale-x", arguments, folder, folder / "a home", JobShape(1, 1), **changes)


def _tools(folder: Path, tools: dict[str, str]) -> None:
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o700)


def _shell(script: str, folder: Path, tools: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    _tools(folder, tools)
    (folder / "job.sh").write_text(script)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **variables}
    command = ["bash", str(folder / "job.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


SCONTROL = 'case $* in *"show job"*) echo "JobId=7 JobState=$STATE x" ;; *) echo "$@" >> requeued ;; esac'


@pytest.mark.parametrize(
    ("code", "state", "restarts", "requeued"),
    [
        ("130", "RUNNING", "0", True),
        ("130", "COMPLETING", "0", False),
        ("130", "RUNNING", "20", False),
        ("1", "RUNNING", "3", False),
    ],
)
def test_a_campaign_with_work_left_requeues_its_job(tmp_path, code, state, restarts, requeued):
    profile = _profile(tmp_path)
    script = _job(tmp_path, ("tune", "my campaign.yaml"), resumes=True).script(profile)
    (tmp_path / "a home" / "slurm").mkdir(parents=True)
    tools = {"chorale": f'printf "%s|" "$@"; exit {code}', "scontrol": SCONTROL, "sleep": "exit 0"}
    done = _shell(script, tmp_path, tools, STATE=state, SLURM_RESTART_COUNT=restarts)
    assert done.stdout == "tune|my campaign.yaml|" + ("--resume|" if restarts != "0" else "")
    assert done.returncode == int(code), done.stderr
    assert (tmp_path / "requeued").exists() == requeued


def test_signals_reach_the_command_and_its_end_is_waited_for(tmp_path):
    profile = _profile(tmp_path)
    script = _job(tmp_path, ("run", "x")).script(profile)
    work = "trap 'sleep 1; echo stopped; exit 130' USR1; kill -TERM $PPID; while :; do sleep 0.1; done"
    done = _shell(script, tmp_path, {"chorale": work})
    assert (done.returncode, done.stdout) == (130, "stopped\n"), done.stderr


@pytest.mark.parametrize(
    ("prologue", "work", "ray"),
    [
        ("kill -USR1 $$", "exit 7", False),
        ("true", "kill -USR1 $PPID; sleep 1", False),
        ("true", "kill -USR1 $$", False),
        ("true", "exit 0", True),
    ],
    ids=["before the command", "before it takes signals", "without waiting", "while Ray starts"],
)
def test_a_campaign_that_is_stopped_early_requeues(tmp_path, prologue, work, ray):
    profile = _profile(tmp_path, prologue)
    shape = JobShape(2, 4, ray=True) if ray else JobShape(1, 1)
    job = SlurmJob("chorale-x", ("tune", "c.yaml"), tmp_path, tmp_path / "a home", shape, True)
    scontrol = f'case $* in *hostnames*) printf "n1\\nn2\\n" ;; *) {SCONTROL} ;; esac'
    tools = {"chorale": work, "scontrol": scontrol, "sleep": "exec /bin/sleep $(( $1 > 9 ? 0 : $1 ))"}
    if ray:
        tools |= {"srun": "exit 0", "python3": "kill -USR1 $PPID; exec /bin/sleep 5"}
    done = _shell(job.script(profile), tmp_path, tools, STATE="RUNNING")
    assert done.returncode == 130, done.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_scripts_with_ray_are_shell(tmp_path):
    for tasks in (1, 3):
        job = SlurmJob("chorale-x", ("tune", "c.yaml"), tmp_path, tmp_path, JobShape(2, 4, ray=True), True, tasks)
        script = job.script(SlurmProfile())
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert ("--array=0-2" in script) == ("#SBATCH --exclusive" in script) == (tasks == 3)
        assert script == job.script(SlurmProfile())


def test_the_command_line_writes_the_script_of_a_campaign(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))
    (tmp_path / "site.yaml").write_text(PROFILE)
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    for flag in ("--site=x", "--wait", "--time=2h"):
        refused = chorale(capsys, "tune", "c.yaml", flag, code=2).stderr
        assert f"{flag.partition('=')[0]} works only for a Slurm job; add --slurm" in refused
    options = ("--set", "budget.trials=2", "--deterministic", "--json", "--site", "site.yaml", "--array", "2")
    chorale(capsys, "tune", "c.yaml", "--slurm-script", "job.sh", *options, code=0)
    script = (tmp_path / "job.sh").read_text()
    settings = "--set budget.trials=2 --deterministic --json c.yaml"
    shared = "--set runner.at_once=2 --set 'runner.needs.resources={chorale_task: 1}' --set controls=every-trial"
    assert f" tune {settings} {shared} $resume\n" in script
    assert "#SBATCH '--comment=two words'\n" in script
    assert not (tmp_path / "home").exists()


FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedJob:
    """Return the job of campaign `c` of the data folder `tmp_path`, which ends while it is followed."""
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(submission, "_POLL_S", 0.01)
    folder = tmp_path / "slurm"
    folder.mkdir()
    job = SubmittedJob("7", str(folder / "chorale-c-7.out"), str(folder / "chorale-c-7.err"))
    (folder / "chorale-c.json").write_text(json.dumps(asdict(job)))
    Path(job.messages).write_text("trial 1\n")
    Path(job.output).write_text("results\n")
    return job


@pytest.mark.parametrize(
    ("answer", "left", "code"),
    [
        ("echo JobId=7 JobState=COMPLETED ExitCode=0:0", None, 0),
        ("echo JobId=7 JobState=FAILED ExitCode=2:0", None, 2),
        ("echo JobId=7 JobState=CANCELLED ExitCode=0:15", None, 130),
        ("echo JobId=7 JobState=NODE_FAIL ExitCode=0:0", None, 1),
        (FORGOTTEN, "0", 0),
        (FORGOTTEN, "3", 3),
        (FORGOTTEN, None, 1),
    ],
)
def test_a_job_that_is_followed_ends_with_its_code(tmp_path, job, answer, left, code):
    running = "test -e asked || { touch asked; echo JobId=7 JobState=RUNNING ExitCode=0:0; exit; }"
    _tools(tmp_path, {"scontrol": f"cd {tmp_path}; {running}; {answer}"})
    if left is not None:
        Path(job.output).with_suffix(".code").write_text(f"{left}\n")
    said = list[str]()
    assert (follow(job, said.append), "".join(said)) == (code, "trial 1\n")


def test_a_controller_that_is_silent_for_a_while_is_waited_for(tmp_path, job, monkeypatch):
    silent = f"test $(wc -l < {tmp_path}/asked) -gt 2 || {{ echo Unable to contact slurm controller >&2; exit 1; }}"
    _tools(tmp_path, {"scontrol": f"echo x >> {tmp_path}/asked; {silent}; echo JobId=7 JobState=FAILED ExitCode=2:0"})
    assert follow(job, lambda text: None) == 2
    _tools(tmp_path, {"scontrol": "echo Unable to contact slurm controller >&2; exit 1"})
    monkeypatch.setattr(submission, "_SILENCE_LIMIT_S", 0.0)
    with pytest.raises(Unavailable, match="Unable to contact slurm controller"):
        follow(job, lambda text: None)


def test_the_latest_job_of_a_name_is_cancelled_while_it_runs(tmp_path, job, capsys):
    assert submitted(tmp_path / "slurm", "chorale-c") == job
    assert submitted(tmp_path / "slurm", "chorale-d") is None
    _tools(
        tmp_path, {"scontrol": "echo JobId=7 JobState=RUNNING ExitCode=0:0", "scancel": f'echo "$@" > {tmp_path}/gone'}
    )
    for command in (("tune", "--stop", "c"), ("campaign", "cancel", "c")):
        assert "job 7 is cancelled" in chorale(capsys, *command, code=0).stderr
        assert (tmp_path / "gone").read_text() == "7\n"
        (tmp_path / "gone").unlink()
    ended = "echo JobId=7 JobState=TIMEOUT ExitCode=0:0", "job 7 has ended (TIMEOUT);"
    for answer, said in (ended, (FORGOTTEN, "7 has ended;")):
        _tools(tmp_path, {"scontrol": answer})
        assert said in chorale(capsys, "tune", "--stop", "c", code=1).stderr
