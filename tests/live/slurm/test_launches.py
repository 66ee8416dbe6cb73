"""Launches in a real Slurm: order and number of ranks, hangs, kinds of MPI, steps and tasks; the guide's commands."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.live.slurm.conftest import JOB_LIMIT_S, Site
from tests.live.support import needs_mpi
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(3 * JOB_LIMIT_S)]

GPUS = (
    "chorale --quiet run ring8.parquet --runner msccl --sizes 1M --repeats 1 --set runtime=executor "
    "--set library_folder=$PWD --set memory=host --set iterations=1 --timeout 120"
)
MPI = "chorale --quiet run ring8.parquet --runner mpi --where cluster --sizes 64K --repeats 2 --timeout 120"
LAUNCHERS = {
    "srun": f"{GPUS} --set launcher=srun --set hosts=n3,n2",
    "mpich": f"{GPUS} --set launcher=mpich --set hosts=n3,n2",
    "mpi": f"{MPI} --hosts n3,n2",
}
launchers = pytest.mark.parametrize("launcher", LAUNCHERS)


WIDE = ("--nodes=3", "--ntasks=24", "--gpus-per-node=8")
PLACES = {  # what stands before the command, options of the job, and the nodes that must be used
    "on the hosts that were named, in their order": ("", WIDE, "n3,n2"),
    "in blocks, whatever the site says": (
        "export SLURM_DISTRIBUTION=cyclic\n",
        ("--nodes=3", "--ntasks-per-node=4", "--gpus-per-node=4"),
        "n1,n2",
    ),
    "in a step, on the nodes of the job": ("srun --nodes=1 --ntasks=1 --nodelist=n2 ", WIDE, "n3,n2"),
}


@needs_mpi
@launchers
@pytest.mark.parametrize("place", PLACES)
def test_ranks_run_where_they_should(site: Site, launcher: str, place: str) -> None:
    before, options, nodes = PLACES[place]
    command = LAUNCHERS[launcher]
    if nodes == "n1,n2":  # no hosts are named
        command = MPI if launcher == "mpi" else f"{GPUS} --set launcher={launcher} --set gpus_per_node=4"
    said = site.job(f"{before}{command} --json > placed.json", *options)
    document = site.document("placed.json")
    assert "failure" not in document, (document, said)
    assert document["environment"]["nodes"] == nodes


@needs_mpi
@launchers
def test_a_launch_in_an_allocation_of_salloc_uses_its_nodes(site: Site, launcher: str) -> None:
    nodes = ("--nodes=2", "--ntasks=16", "--gpus-per-node=8", "--nodelist=n2,n3", "--quiet")
    command = ("salloc", *nodes, "sh", "-c", f"{LAUNCHERS[launcher]} --json")
    done = site.cluster.run(*command, limit_s=JOB_LIMIT_S, folder=site.folder, variables=site.variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["nodes"] == "n3,n2"


@needs_mpi
@pytest.mark.parametrize("launcher", [*LAUNCHERS, "ray"])
def test_several_tasks_that_would_each_start_all_ranks_are_refused(site: Site, launcher: str) -> None:
    command = LAUNCHERS.get(launcher, f"{GPUS} --set launcher=ray")
    said = site.job(f"srun --nodes=1 --ntasks=2 {command}\necho code $?", "--nodes=2", "--ntasks=16")
    assert said.count("this command starts the ranks itself, but it was started 2 times") == 2
    assert "code 2" in said


@needs_mpi
@launchers
def test_a_hang_ends_with_its_step_and_the_next_launch_runs(site: Site, launcher: str) -> None:
    command = LAUNCHERS[launcher]
    late = "--timeout 0.2 --repeats 100000" if launcher == "mpi" else "--sizes 1M,2M --timeout 20"
    script = (
        f"STAND_IN_FAULT=hang {command} {late}\necho code $?\n"
        f"squeue --steps --noheader --format='step %i'\n{command} --json > after.json"
    )
    said = site.job(script, *WIDE)
    assert launcher == "mpi" or "the time limit passed while program ring8.parquet was proved" in said
    assert "code 1" in said
    assert re.findall(r"step \d+\.(\S+)", said) == ["batch"]
    assert "failure" not in site.document("after.json")


@needs_mpi
@launchers
@pytest.mark.parametrize("signal", ["USR1", "USR2", "TERM", "KILL"])
def test_every_signal_leaves_no_step_and_no_folder(site: Site, launcher: str, signal: str) -> None:
    command = LAUNCHERS[launcher] + (" --repeats 1000000" if launcher == "mpi" else " --sizes 1M,2M")
    script = f"""
left() {{ ls jobs | grep -v "^chorale-$(id -u)$"; }}  # the folder of the lock of this user's measurements stays
(export STAND_IN_FAULT=hang TMPDIR=$PWD/jobs; exec {command}) &
work=$!
for turn in $(seq 600); do
  squeue --steps --noheader --format=%j | grep -q chorale- && break
  sleep 0.2
done
sleep 3
kill -{signal} $work
wait $work
echo code $?
for turn in $(seq 100); do
  squeue --steps --noheader --format=%j | grep -q chorale- || [ -n "$(left)" ] || break
  sleep 0.2
done
squeue --steps --noheader --format='step %i'
left | wc -l
"""
    said = site.job(script, "--nodes=3", "--ntasks=24", "--gpus-per-node=8")
    assert f"code {137 if signal == 'KILL' else 130}" in said
    assert re.findall(r"step \d+\.(\S+)", said) == ["batch"]
    assert said.split()[-1] == "0"


def test_an_exported_job_is_taken_by_slurm(site: Site) -> None:
    profile = site.folder / "export.yaml"
    profile.write_text("partition: work\ntime: 10min\nprologue: [echo prologue ran]\nsbatch: [--comment=tuned]\n")
    code, _, messages = site.chorale(
        *("export", "ring8.parquet", "-o", "exported", "--target", "msccl-executor-xml", "--sizes", "1M"),
        *("--hosts", "n3,n1", "--site", "export.yaml"),
    )
    assert code == 0, messages
    job = site.folder / "exported" / "executor-srun"
    done = site.cluster.run("sbatch", "--parsable", "job.sbatch", folder=job, variables=site.variables)
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    assert site.cluster.wait(number, JOB_LIMIT_S) == "COMPLETED", _text(job / f"slurm-{number}.out")
    assert "prologue ran" in _text(job / f"slurm-{number}.out")
    assert "--nodelist=n3,n3,n3,n3,n1,n1,n1,n1" in _text(job / "run.sh")
    assert site.cluster.fact(number, "TimeLimit") == "00:10:00"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_node_that_goes_down_ends_the_job_and_its_steps(site: Site) -> None:
    script = f"STAND_IN_FAULT=hang {LAUNCHERS['srun']} --sizes 1M,2M"
    job = site.start(script, "--nodes=2", "--ntasks=16", "--nodelist=n2,n3", "--no-requeue")
    until(lambda: any("chorale-" in name for name in site.cluster.steps()), JOB_LIMIT_S, site.cluster.steps)
    site.cluster.set_down("n3")
    assert site.cluster.wait(job, JOB_LIMIT_S) == "NODE_FAIL"
    until(lambda: not site.cluster.steps(), 60, site.cluster.steps)


PAGE = (DOCS / "guide/slurm.md").read_text()
CAMPAIGN = """\
name: guide
topology: ring:4
collective: allreduce
sizes: [64KiB]
runner: {kind: simulated}
search: {methods: [ring, swing]}
budget: {trials: 2}
"""


@needs_mpi
def test_the_commands_of_the_guide_run(site: Site) -> None:
    (site.folder / "campaign.yaml").write_text(CAMPAIGN)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (profile,) = (text for language, text in blocks if language == "yaml")
    assert "ulimit -c 0" in profile
    slow_start = f'prologue: ["export RAY_raylet_start_wait_time_s=300 PYTHONPATH={site.variables["PYTHONPATH"]}",'
    (site.folder / "site.yaml").write_text(profile.replace("prologue: [", slow_start))
    commands = [line for language, text in blocks if language == "" for line in text.splitlines()]
    assert len(commands) == 5
    for command in commands:
        words = [word.replace("NAME", "guide") for word in shlex.split(command)]
        if "--stop" in words:  # the one above has been followed to its end
            assert site.chorale("tune", "campaign.yaml", "--slurm", "--site", "site.yaml")[0] == 0
        code, output, messages = site.chorale(*words[1:])
        has_ended = "--stop" in words and "the job has ended already" in messages  # before it could be stopped
        assert code == 0 or has_ended, f"{command}\n{output}\n{messages}"
