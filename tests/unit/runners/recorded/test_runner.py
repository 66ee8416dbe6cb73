"""The runner that replays records: which configuration a program stands for, and what it refuses."""

from dataclasses import replace

import pytest

from chorale.experiments.ours.tuning import mi250_program
from chorale.runners.api.base import FailureKind, ProgramSettings, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.recorded.runner import RecordedRunner
from chorale.runners.recorded.table import RecordedTable, mi250_table, read_runs
from chorale.synth.collective import ALLGATHER
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allgather, ring_allreduce
from tests.conformance.runner_kit import failed, measured

HALF = parse_topology("mi250half:2")
RECORDED = mi250_program("mi250-allgather")


def _request(program: Program = RECORDED, **others: object) -> RunRequest:
    return replace(RunRequest(HALF, {"program": program}, (2**24, 2**30), repeats=9), **others)  # type: ignore[arg-type]


def _recorded_s(buffer_bytes: int, **origin: object) -> list[float]:
    """Return the times of the allgather in place whose schedule is that of `origin`, at both sizes."""
    (one,) = [
        one
        for one in mi250_table().configurations("mi250_8+8", "allgather")
        if one.in_place and one.buffer_bytes == buffer_bytes
        if all(getattr(one.origin, name) == value for name, value in origin.items())
    ]
    return [time_s for size in (2**24, 2**30) for time_s in mi250_table().times_s(one, size)]


def _medians(outcome: object, name: str = "program") -> list[float]:
    return [one.median_s for one in measured(outcome).results[name]]  # type: ignore[arg-type]


def test_a_recorded_program_gets_its_own_times_and_settings_choose_the_configuration() -> None:
    # Its name says "(k1,inst1)"; its buffers are what the runtime takes by itself, 4 MiB.
    medians = _medians(RecordedRunner().submit(_request(repeats=99)))
    assert medians == pytest.approx(_recorded_s(2**22, k=1, instances=1), rel=0.01)
    assert measured(RecordedRunner().submit(_request())).results["program"][0].size_bytes == 2**24
    ring = ring_allgather(16, in_place=True)
    for k, instances, buffer_bytes in ((1, 2, 2**20), (2, 1, 2**18), (4, 1, 2**23)):
        settings = {"program": ProgramSettings(k, instances, buffer_bytes)}
        medians = _medians(RecordedRunner().submit(_request(ring, repeats=99, settings=settings)))
        assert medians == pytest.approx(_recorded_s(buffer_bytes, k=k, instances=instances), rel=0.01)


def test_what_is_drawn_for_a_program_depends_on_the_seed_and_not_on_its_neighbours() -> None:
    first = create_runner("recorded", {"buffer_bytes": 2**20}).submit(_request(seed=1))
    assert first == create_runner("recorded", {"buffer_bytes": 2**20}).submit(_request(seed=1))
    assert _medians(first) != _medians(create_runner("recorded", {"buffer_bytes": 2**20}).submit(_request(seed=2)))
    alone = measured(RecordedRunner().submit(_request()))
    ring = ring_allgather(16, in_place=True)
    request = _request(programs={"ring": ring, "program": RECORDED}, settings={"ring": ProgramSettings(2, 2)})
    assert measured(RecordedRunner().submit(request)).results["program"] == alone.results["program"]


def test_the_library_is_measured_beside_programs() -> None:
    runner = RecordedRunner()
    assert runner.library("allgather") == ("rccl",)
    assert runner.library("broadcast") == ()
    outcome = runner.submit(_request(library=("rccl",), repeats=99))
    assert _medians(outcome, "library:rccl") == pytest.approx([522.4e-6, 23889e-6], rel=0.01)
    failed(runner.submit(_request(library=("nccl",))), FailureKind.REJECTED)


def test_a_schedule_may_be_named() -> None:
    name = "original-Allgather.n16-MI250_half-steps10-tacclsol-improve-1706261059_i4_scRemote1_IBContig.sccl"
    runner = create_runner("recorded", {"generator": "TACCL", "schedule": name, "buffer_bytes": "512KiB"})
    assert _medians(runner.submit(_request(repeats=99))) == pytest.approx(_recorded_s(2**19, schedule=name), rel=0.01)
    unnamed = failed(create_runner("recorded", {"generator": "TACCL"}).submit(_request()), FailureKind.REJECTED)
    assert name in unnamed.message
    wrong = create_runner("recorded", {"schedule": "trees"}).submit(_request())
    assert "with trees and buffers of 4MiB, only amd_allgather" in failed(wrong, FailureKind.REJECTED).message


def test_runs_that_fell_back_are_rejected() -> None:
    out = ring_allgather(16, in_place=False)
    outcome = RecordedRunner().submit(_request(out, settings={"program": ProgramSettings(k=1)}))
    failure = failed(outcome, FailureKind.REJECTED)
    assert "fell back to its own algorithm" in failure.message
    assert "calls of that placement are not what its schedule is for" in failure.message
    failure = failed(RecordedRunner().submit(_request(sizes_bytes=(2**20, 512))), FailureKind.REJECTED)
    assert "at 512B: calls of that size cannot be cut into its chunks" in failure.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes_bytes": (3000,)}, "was not measured at 3000 bytes; choose from 256B, 512B"),
        ({"dtype": "float64"}, "everything was recorded with float32, nothing with float64"),
        (
            {"settings": {"program": ProgramSettings(3)}},
            "with k 3, 1 instances and buffers of 4MiB, only k 1 with 1 instances",
        ),
        ({"settings": {"program": ProgramSettings(1, 1, 2**10)}}, "buffers of 64KiB, 128KiB"),
        ({"topology": parse_topology("ring:16")}, "nothing was recorded on ring:16, only on mi250half:2, mi250:2"),
        ({"sizes_bytes": ()}, "at least one program and one size"),
        ({"programs": {}}, "at least one program and one size"),
        (
            {"programs": {"program": ring_allreduce(range(16))}},
            "no allreduce of ForestColl was recorded on mi250_8+8 with k None",
        ),
    ],
)
def test_what_was_not_recorded_is_rejected(change: dict[str, object], message: str) -> None:
    program = ring_allgather(16, in_place=True) if "topology" in change else RECORDED
    failure = failed(RecordedRunner().submit(replace(_request(program), **change)), FailureKind.REJECTED)  # type: ignore[arg-type]
    assert message in failure.message


@pytest.mark.parametrize(("cell", "correct"), [("0", True), ("N/A", None), ("7", False)])
def test_what_nobody_checked_or_is_wrong_is_not_called_right(cell: str, correct: bool | None) -> None:
    text = (
        "fabric,collective,generator,schedule,trees_per_root_k,instances,buffer_bytes,size_bytes,"
        "time_out_of_place_us,wrong_out_of_place,time_in_place_us,wrong_in_place\n"
        f"mi250_8+8,{ALLGATHER},ForestColl,a,1,1,4194304,1048576,,,100,{cell}\n"
    )
    outcome = RecordedRunner(RecordedTable(read_runs(text))).submit(_request(sizes_bytes=(2**20,)))
    if correct is False:
        failed(outcome, FailureKind.WRONG_RESULT)
    else:
        assert [size.correct for sizes in measured(outcome).results.values() for size in sizes] == [correct]
