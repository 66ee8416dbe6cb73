"""What the network models predict against what real processes over paced links take."""

import pytest

from chorale.runners.api.base import RunRequest
from chorale.runners.api.programs import busiest_share
from chorale.runners.local.runner import LocalRunner
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, simulate
from chorale.synth.topology.spec import parse_topology
from tests.conformance.runner_kit import measured
from tests.synthesis import synthesized

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
    with LocalRunner(LINK_MBPS, probe=False) as runner:
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
