"""Schedules in smaller pieces: the same loads and costs, and trees that run as pipelines."""

import pytest

from chorale.runners.api.base import Measurement, RunRequest
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.transforms import pipeline_split
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


def made(method: str, spec: str, collective: Collective = ALLGATHER) -> VerifiedSchedule:
    return synthesize(method, parse_topology(spec), collective, None, SerialExecutor())


@pytest.mark.parametrize(("method", "spec"), [("forest", "ring:5"), ("forest", "a100:2"), ("bfb", "torus:3x3")])
@pytest.mark.parametrize("collective", [ALLGATHER, ALLREDUCE])
def test_parts_change_no_cost(method: str, spec: str, collective: Collective) -> None:
    whole = made(method, spec, collective)
    parts = verify(pipeline_split(whole.schedule, 3))
    assert parts.cost.time_per_byte == whole.cost.time_per_byte
    assert parts.cost.steps == whole.cost.steps
    assert parts.schedule.chunks_per_shard == 3 * whole.schedule.chunks_per_shard
    assert len(parts.schedule.transfers) == 3 * len(whole.schedule.transfers)
    assert parts.schedule.parameters["depth"] == 3


def test_one_part_is_the_same_schedule() -> None:
    whole = made("forest", "ring:4").schedule
    assert pipeline_split(whole, 1).id == whole.id


def test_deeper_pipelines_of_trees_are_faster_at_large_sizes() -> None:
    whole = made("forest", "ring:8", Collective(CollectiveName.BROADCAST, 0))
    schedules = {"whole": whole, "parts": verify(pipeline_split(whole.schedule, 8))}
    programs = {name: lower(one, LoweringOptions("oneccl-xml")) for name, one in schedules.items()}
    runner = SimulatedRunner(NetworkModel.of(alpha_us=1, link_gbps=10))
    outcome = runner.submit(RunRequest(parse_topology("ring:8"), programs, (2**24,), repeats=1))
    assert isinstance(outcome, Measurement)
    times = {name: sizes[0].median_s for name, sizes in outcome.results.items()}
    assert times["parts"] < 0.5 * times["whole"]


@pytest.mark.parametrize("parts", [0, 5000])
def test_numbers_of_parts_have_limits(parts: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 1024 parts"):
        pipeline_split(made("ring", "ring:4").schedule, parts)
