"""Calibration: it finds what simulated machines are made of, and says how wrong it is."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.base import RunRequest
from chorale.runners.simulated.calibration import (
    FORMAT,
    Calibration,
    Observation,
    TimeTerms,
    calibrate,
    observations_of,
)
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from tests.conformance.example_programs import ring_allreduce, star_broadcast
from tests.conformance.runner_kit import measured
from tests.unit.synth.lowering.programs import lowered, verified

TORUS = parse_topology("torus:2x4")


def test_terms_of_a_ring_are_its_steps_messages_and_bytes_and_what_ranks_do_beside_them():
    terms = TimeTerms.of(ring_allreduce(range(8)), parse_topology("ring:8"))
    assert terms == TimeTerms(chain=14, messages=28, chunk_cost=14)
    # The root sends all four messages over the one link it has, one block each.
    assert TimeTerms.of(star_broadcast(5, root=0), parse_topology("mesh:5")).chunk_cost == pytest.approx(4)
    traffic = traffic_of(verified("ring:5", "allreduce", "ring").schedule)
    # Each rank sends one message and receives one in each of 8 steps.
    assert Calibration("link", 3.0, 1.0, 0.5, 1.0, 0.0, 0.0, None, 4).overhead_of_traffic_s(traffic) == 3 + 0.5 * 16


def test_alpha_and_bandwidth_of_a_simulated_machine_are_found():
    made = {
        f"{method} {instances}": lowered("torus:2x4", "allreduce", method=method, instances=instances)
        for method in ("bfb", "ring")
        for instances in (1, 4)
    }
    runner = SimulatedRunner(NetworkModel.of(alpha_us=50, link_gbps="0.4"))
    measurement = measured(runner.submit(RunRequest(TORUS, made, (2**14, 2**20))))
    found = calibrate(observations_of(measurement, made, TORUS), "link")
    assert found.alpha_s == pytest.approx(50e-6)
    assert found.unit_bytes_per_s == pytest.approx(50e6)
    assert found.constant_s == pytest.approx(0, abs=1e-12)
    assert found.overhead_s == pytest.approx(0, abs=1e-12)
    assert found.max_error < 1e-9
    assert found.observations == 8
    model = found.network_model(TORUS)
    assert float(model.alpha_s) == pytest.approx(50e-6)
    assert float(model.link_gbps or 0) == pytest.approx(0.4)


@given(
    st.tuples(*(st.floats(1e-7, 1e-3) for _ in range(3)), st.floats(1e6, 1e12)),
    st.lists(st.floats(-0.03, 0.03), min_size=12, max_size=12),
)
def test_all_four_coefficients_are_told_apart_up_to_noise(coefficients, noise):
    constant_s, alpha_s, overhead_s, unit_bytes_per_s = coefficients
    true = Calibration("link", constant_s, alpha_s, overhead_s, unit_bytes_per_s, 0.0, 0.0, None, 0)
    kinds = {"a": TimeTerms(4, 10, 3), "b": TimeTerms(30, 12, 4), "c": TimeTerms(5, 400, 3), "d": TimeTerms(2, 2, 9)}
    observations = [
        Observation(name, terms, size_bytes, 1.0) for name, terms in kinds.items() for size_bytes in (1, 10**5, 10**9)
    ]
    observations = [
        replace(one, time_s=true.seconds(one) * (1 + wrong)) for one, wrong in zip(observations, noise, strict=True)
    ]
    found = calibrate(observations, "link")
    assert found.mean_error <= 0.04
    exact = calibrate([replace(one, time_s=true.seconds(one)) for one in observations], "link")
    assert exact.alpha_s == pytest.approx(alpha_s, rel=1e-3)
    assert exact.unit_bytes_per_s == pytest.approx(unit_bytes_per_s, rel=1e-3)
    assert exact.max_error < 1e-6


def test_bandwidths_of_the_topology_are_scaled():
    links = Links.build([Link(0, 1, 2), Link(1, 0, 2)])  # type: ignore[arg-type]
    pair = Topology("pair", ("a", "b"), 2, links, "GB/s")
    found = Calibration("GB/s", 0.0, 1e-6, 0.0, 0.5e9, 0.0, 0.0, None, 4)
    assert found.network_model(pair).unit_bytes_per_s(pair) == 500_000_000
    with pytest.raises(InvalidInput, match="the calibration is for bandwidths in GB/s: torus:2x4 in link"):
        found.network_model(TORUS)


def test_a_program_that_was_not_seen_shows_what_the_fit_is_worth_and_times_without_bytes_fit_nothing():
    terms = {"a": TimeTerms(2, 4, 1), "b": TimeTerms(20, 4, 1)}
    seen = [Observation("a", terms["a"], size, 2e-6 + size * 1e-9) for size in (1, 1000, 10**6)]
    assert calibrate(seen, "link").unseen_error is None
    other = [Observation("b", terms["b"], size, 20e-6 + size * 1e-9) for size in (1, 1000, 10**6)]
    both = calibrate(seen + other, "link")
    assert both.max_error < 1e-9
    assert both.unseen_error is not None
    assert both.unseen_error > 0.1  # from "a" alone nobody knows what a chain costs
    same = [Observation("a", TimeTerms(3, 3, 1), size, 1e-3) for size in (1, 2, 4)]
    with pytest.raises(CheckFailed, match="measure larger sizes"):
        calibrate([replace(one, time_s=1e-3 / one.chunk_bytes) for one in same], "link")


CALIBRATION = Calibration("link", 0.0, 1e-6, 2e-7, 5e7, 0.01, 0.05, 0.02, 12)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], f"JSON of the format {FORMAT}"),
        ({"format": "other"}, f"JSON of the format {FORMAT}"),
        ({"format": FORMAT}, "constant_s of a calibration must be a number"),
        ({"alpha_s": -1}, "alpha_s of a calibration must be a number"),
        ({"overhead_s": "1"}, "overhead_s of a calibration must be a number"),
        ({"unit_bytes_per_s": 0}, "unit_bytes_per_s of a calibration must be a number"),
        ({"alpha_s": float("nan")}, "alpha_s of a calibration must be a number"),
    ],
)
def test_json_reads_back_and_other_is_refused(document, message):
    good = CALIBRATION.to_json()
    assert Calibration.from_json(good) == CALIBRATION
    given_document = {**good, **document} if isinstance(document, dict) and "format" not in document else document
    with pytest.raises(InvalidInput, match=message):
        Calibration.from_json(given_document)
