"""What the network models predict against what real processes over paced links take."""

import os
from fractions import Fraction

import numpy as np
import pytest

import chorale
from chorale.experiments.framework.experiment import synthesized
from chorale.runners.api.base import RunRequest
from chorale.runners.api.programs import busiest_share
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, simulate
from chorale.synth.topology.spec import parse_topology
from tests.conformance.runner_kit import measured
from tests.live.conftest import Up

NAME = f"traffic-{os.getpid()}"
LINK_MBPS = 20
SIZE_BYTES = 2**19


@pytest.mark.alone
@pytest.mark.parametrize("spec", ["ring:4", pytest.param("torus:2x3", marks=pytest.mark.slow)])
def test_both_models_predict_what_the_local_runner_measures(spec: str) -> None:
    """Nothing comes before its time on paced links, so no run is faster than its busiest link. Ranks pass bytes on as
    they come, which hides at most one step where the links of two steps differ, as at the turn of a ring. How much
    slower one is says how busy the machine is; the best of five stays below one and a half times even on a crowded one.
    """
    topology = parse_topology(spec)
    made = {name: synthesized(name, topology, ALLREDUCE) for name in ("bfb", "ring")}
    programs = {name: lower(verified, LoweringOptions("oneccl-xml")) for name, verified in made.items()}
    with LocalRunner(LocalConfig(link_mbps=LINK_MBPS, probe=False)) as runner:
        results = measured(runner.submit(RunRequest(topology, programs, (SIZE_BYTES,), repeats=5))).results
    network = NetworkModel.of(link_gbps=LINK_MBPS / 1000)
    for name, verified in made.items():
        (run,) = results[name]
        busiest_s = run.size_bytes * 8 / (LINK_MBPS * 1e6) * float(busiest_share(programs[name], topology))
        assert run.min_s >= 0.99 * busiest_s
        for fidelity in ("step", "flow"):
            (predicted_s,) = simulate(traffic_of(verified.schedule), network, [run.size_bytes], fidelity)  # type: ignore[arg-type]
            unhidden = 1 - 1 / verified.cost.steps
            assert 0.99 * max(busiest_s, unhidden * predicted_s) <= run.min_s <= 1.5 * predicted_s
    measured_ratio = results["ring"][0].min_s / results["bfb"][0].min_s
    predicted_ratio = made["ring"].cost.time_per_byte / made["bfb"].cost.time_per_byte
    assert measured_ratio == pytest.approx(float(predicted_ratio), rel=0.35)


@pytest.mark.alone
def test_skewed_traffic_on_boxes_with_rails_takes_what_is_simulated_and_no_less_than_its_bound(up: Up) -> None:
    """Experts in one of two boxes are popular: every rank sends there, and as much comes back from there."""
    network, lane_mbps, unit_bytes = chorale.topology("railclos:2,4,100,1"), 90, 2**15
    up(network.spec, lane_mbps)
    pace = Fraction(lane_mbps * 10**6, 450 * 8 * 10**9)  # the lanes of this network have 450 GB/s
    tokens = np.add.outer(np.arange(8) % 2, [12, 5, 3, 2, 2, 1, 1, 1])
    neighbours = chorale.plan_alltoall(network, np.diag([1, 0, 0, 0, 0, 0, 0], k=1))
    assert neighbours.method == "direct"  # so that it sends everything else directly, too
    for name, traffic in (("dispatch", tokens), ("combine", tokens.T)):
        plan = chorale.plan_alltoall(network, traffic)
        plans = {"plan": plan, "direct": neighbours.with_traffic(traffic)}
        programs = {each: chorale.lower(plans[each].schedule(), "oneccl-xml").program for each in plans}
        assert len({program.chunks for program in programs.values()}) == 1
        size_bytes = unit_bytes * programs["plan"].chunks
        request = RunRequest(network, programs, (size_bytes,), repeats=3, timeout_s=100)
        with LocalRunner(LocalConfig(where="fabric", fabric=NAME)) as runner:
            runs = measured(runner.submit(request)).results
        simulated = measured(SimulatedRunner(NetworkModel(efficiency=pace)).submit(request)).results
        bound_s = plan.seconds(plan.bound) * unit_bytes / float(pace)
        for each in plans:
            (run,), (predicted,) = runs[each], simulated[each]
            shown = f"{name} {each}: {run.min_s:.3f} s, simulated {predicted.min_s:.3f} s, at least {bound_s:.3f} s"
            print(shown)  # noqa: T201 - shown with -s
            assert bound_s <= run.min_s < 10 * predicted.min_s
            assert bound_s <= predicted.min_s < 10 * run.min_s
    assert runs["plan"][0].min_s < runs["direct"][0].min_s
