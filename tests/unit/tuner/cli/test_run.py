"""`chorale run`, called as a person would, in this process."""

from dataclasses import replace
from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.targets.registry import target_named
from tests.command import chorale
from tests.conformance.example_programs import ring_allreduce, with_swapped_offset
from tests.stand_ins.nccl import stand_in_library

SIMULATED = ("--runner", "simulated", "--link-mbps", "1000", "--sizes")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))


@pytest.fixture
def schedule(capsys: pytest.CaptureFixture[str]) -> str:
    assert chorale(capsys, "synth", "bfb", "torus:2x2", "--collective", "allreduce", "-o", "square.parquet").code == 0
    return "square.parquet"


def test_a_schedule_runs_and_the_json_is_that_of_the_contract(schedule, capsys):
    document = chorale(capsys, "run", schedule, *SIMULATED, "4K,1M", "--repeats", 3, "--json").document
    assert document["runner"] == "simulated"
    assert document["environment"]["link_gbps"] == "1"
    small, large = document["results"]
    assert small["size_bytes"] == 4096
    # BFB on 4 nodes of degree 2: 2 * 3/4 / 2 of the vector at 1 Gbit/s
    time_us = pytest.approx(0.75 * 2**20 * 8 / 1000)
    assert large == {
        "size_bytes": 2**20, "time_us_median": time_us, "time_us_iqr": 0, "time_us_min": time_us, "repeats": 3,
        "algbw_gb_per_s": pytest.approx(1 / 8 / 0.75), "busbw_gb_per_s": pytest.approx(1.5 / 8 / 0.75),
        "correct": True, "time_us_interval": [large["time_us_min"], large["time_us_min"]], "confidence": 0.75,
    }  # fmt: skip
    assert "reference" not in document
    done = chorale(capsys, "run", schedule, "--spec", "hypercube:2", *SIMULATED, "4097")  # the same network
    assert (done.code, "median us" in done.stderr, "median us" in done.stdout) == (0, False, True)
    assert "4097B is rounded up to 4128 bytes, so that its elements fill 8 chunks" in done.stderr


def test_crowded_ranks_on_loopback_are_told_what_paces_links(schedule, capsys, monkeypatch):
    submit = SimulatedRunner.submit
    ways_out = {
        "local": "leave --where out to pace links",
        "mpi": "to pace links, run `chorale fabric up SPEC --link-mbps 50`",
    }
    for runner, way_out in ways_out.items():

        def crowded(self: SimulatedRunner, request: RunRequest, runner: str = runner) -> Outcome:
            outcome = submit(self, request)
            assert isinstance(outcome, Measurement)
            return replace(outcome, runner=runner, environment={"network": "loopback", "cores": 2})

        monkeypatch.setattr(SimulatedRunner, "submit", crowded)
        done = chorale(capsys, "run", schedule, *SIMULATED, "4K")
        assert f"times show no speed-up; {way_out}" in " ".join(done.stdout.split())


def test_a_reference_gives_ratios_and_its_own_results(schedule, capsys):
    chorale(capsys, "synth", "ring", "torus:2x2", "--collective", "allreduce", "-o", "ring.json", code=0)
    options = ("--reference", "ring.json", "--repeats", 6, "--json")
    document = chorale(capsys, "run", schedule, *SIMULATED, "1M", *options).document
    (row,) = document["results"]
    half = {name: pytest.approx(0.5) for name in ("median", "low", "high")}
    assert row["repeats"] == 6
    assert row["ratio_to_reference"] == {"reference": "ring.json", "confidence": 0.95, **half}
    assert document["reference"]["name"] == "ring.json"
    assert document["reference"]["results"][0]["time_us_median"] == pytest.approx(2 * row["time_us_median"])
    table = chorale(capsys, "run", schedule, *SIMULATED, "1M", "--reference", "ring.json").stdout
    assert "1MiB: 2× faster than ring.json (time ratio 0.500 to 0.500 with 94%; 5" in table


def test_a_live_run_waits_for_the_other_measurement_on_this_machine(schedule, capsys, monkeypatch):
    monkeypatch.setattr("chorale.tuner.cli.run.ALONE_PATIENCE_S", 0.2)
    with exclusive(machine_lock(), 100):  # other tests may measure on this machine now
        refused = chorale(capsys, "run", schedule, "--runner", "local", "--sizes", "4KiB", "--link-mbps", "50")
        assert chorale(capsys, "run", schedule, *SIMULATED, "1M").code == 0
    assert refused.code == 3
    assert "another measurement is running on this machine" in refused.stderr


def test_a_program_is_checked_and_runs_on_the_topology_that_is_named(capsys):
    program, options = ring_allreduce(range(4)), ("--spec", "ring:4", *SIMULATED, "1M", "--json")
    for name, each in {"ring.xml": program, "wrong.xml": with_swapped_offset(program, 1)}.items():
        Path(name).write_text(target_named("oneccl-xml").emit(each))
    done = chorale(capsys, "run", "ring.xml", *options)
    assert done.document["results"][0]["time_us_median"] == pytest.approx(1.5 * 2**20 * 8 / 1000)
    done = chorale(capsys, "run", "wrong.xml", *options)
    assert (done.code, done.stderr.count("\n")) == (1, 1)
    assert "a program must compute its collective correctly" in done.stderr


def test_what_cannot_run_says_so_in_one_line(schedule, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    on_gpus = ("--runner", "msccl", "--sizes", "1M", "--set", "launcher=srun")
    for options, code, message in (
        ((*SIMULATED, "1M", "--trace", "trace.json"), 3, "can be traced, not square.parquet on simulated"),
        ((*SIMULATED, "1M", "--reference", "library:best"), 1, "rejected: the runtime has no algorithm of its own"),
        (("--runner", "mpi"), 3, "run: chorale fabric up torus:2x2"),
        (("--runner", "recorded"), 1, "nothing was recorded on torus:2x2, only on mi250half:2"),
        (on_gpus, 3, "there is no srun here; run on a node of a GPU cluster"),
    ):
        done = chorale(capsys, "run", schedule, *options)
        assert (done.code, done.stderr.count("\n"), message in done.stderr) == (code, 1, True), done.stderr


@pytest.mark.parametrize(("kind", "code"), [(FailureKind.CRASH, 1), (FailureKind.UNAVAILABLE, 3)])
def test_a_failure_is_an_exit_code_a_line_and_a_document(schedule, capsys, monkeypatch, kind, code):
    failure = RunFailure(kind, "rank 2 is on fire", 2, {"runner": "simulated"}, ((2, 0, 7),))

    def submit(_: SimulatedRunner, request: RunRequest) -> Outcome:
        return replace(failure, message=f"{failure.message} after {request.repeats} rounds")

    monkeypatch.setattr(SimulatedRunner, "submit", submit)
    done = chorale(capsys, "run", schedule, *SIMULATED, "1M", "--json", code=code)
    said = "rank 2 is on fire after 5 rounds"
    assert done.stderr == f"chorale: {kind}: {said}\n"
    blocked = [{"rank": 2, "block": 0, "instruction": 7}]
    told = {"kind": kind.value, "message": said, "rank": 2, "blocked": blocked}
    environment = {"runner": "simulated"}
    assert done.document == {"runner": "simulated", "results": [], "failure": told, "environment": environment}


def test_schedules_are_lowered_for_the_runtime_of_the_gpus(schedule, capsys, tmp_path, monkeypatch):
    (tmp_path / "libnccl.so").symlink_to(stand_in_library())
    monkeypatch.setenv("STAND_IN_RUNTIME", "executor")
    options = ("--runner", "msccl", "--sizes", "1M", "--repeats", 1, "--reference", "library:nccl", "--json")
    settings = {"runtime": "executor", "memory": "host", "library_folder": tmp_path, "iterations": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    document = chorale(capsys, "run", schedule, *options, *words).document
    assert document["environment"]["runtime"] == "executor"
    (result,) = document["results"]
    assert result["time_us_median"] > 0
