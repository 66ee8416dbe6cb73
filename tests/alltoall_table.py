"""Prints all-to-all plans as a table: `python -m tests.alltoall_table [NETWORK …] [--routing FILE.csv] [--random N]`.

Times are divided by the proven bound, which separate code checks up to 64 ranks. Milliseconds are processor time of a
plan on a known network, the best of three. Skews are those of `chorale alltoall`. A hot rank has 50 times the traffic
of the others. EPLB's are the loads of 12 experts in two layers in the example of its README, dealt out to ranks in
turn. A matrix of `--routing` is repeated for networks with more ranks. `--random` makes N random matrices instead, and
prints how far plans are above their bounds and below the best of what libraries do.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from chorale.synth.kernels import native
from chorale.synth.methods.traffic.certificate import check_traffic_certificate
from chorale.synth.methods.traffic.fabric import RAILS, leg_demands, rail_fabric, relays_of
from chorale.synth.methods.traffic.matrix import TrafficMatrix, traffic_matrix, zipf_matrix
from chorale.synth.methods.traffic.plan import TrafficPlan, certificate_of
from chorale.synth.methods.traffic.planner import LIBRARY, baseline_times, plan_amounts
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.methods.test_traffic import random_amounts

NETWORKS = [f"h100:{boxes}" for boxes in (2, 8, 40, 128)]
NETWORKS += ["b200:8", "nvl72:1", "nvl72:4", "mi300x:8", "torus:4x4", "dragonfly:2,1,1"]
EPLB = ((90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86), (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27))


def traffics(ranks: int, routing: str | None) -> Iterator[TrafficMatrix]:
    """Yield the kinds of traffic among `ranks` ranks."""
    yield traffic_matrix("uniform", np.full((ranks, ranks), 1000))
    for exponent in (0.8, 1.0, 1.2, 1.5):
        yield zipf_matrix(ranks, exponent, 0)
    hot = np.full((ranks, ranks), 1000)
    hot[:, ranks // 2] *= 50
    yield traffic_matrix("hot receiver", hot)
    yield traffic_matrix("hot sender", hot.T)
    for layer, loads in enumerate(EPLB):
        yield traffic_matrix(f"EPLB {layer}", np.tile(np.resize(loads, ranks), (ranks, 1)))
    if routing is not None:
        given = np.loadtxt(routing, delimiter=",", dtype=np.int64)
        times = -(-ranks // len(given))
        yield traffic_matrix("recorded", np.tile(given, (times, times))[:ranks, :ranks])


def library_times(plan: TrafficPlan) -> dict[str, Fraction]:
    """Return the times of `LIBRARY`; on boxes with rails without the other baselines, which take long."""
    fabric = rail_fabric(plan.topology)
    if fabric is None:
        times = baseline_times(plan)
        return {name: times[name] for name in LIBRARY}

    def time_of(sent: np.ndarray, name: str = "direct") -> Fraction:
        loads = fabric.no_loads()
        native.add_relayed_loads(np.ascontiguousarray(sent), *fabric.usual[name], loads)
        return fabric.time(loads) * plan.chunks.chunk

    sent = plan.chunks.counts
    legs = [leg_demands(sent * ~np.eye(len(sent), dtype=bool), relays_of(plan.topology, rail)) for rail in RAILS]
    times = {name: time_of(sent, name) for name in LIBRARY[:3]}
    return {**times, "two_level": min(time_of(first) + time_of(second) for first, second in legs)}


def checked(plan: TrafficPlan) -> dict[str, Fraction]:
    """Return `library_times`, of which none may be less than that of `plan`, after a check of the certificate."""
    if plan.topology.compute_count <= 64:
        assert check_traffic_certificate(plan.topology, certificate_of(plan)) == plan.bound.time
    times = library_times(plan)
    assert plan.bound.time <= plan.time <= min(times.values())
    return times


def summary(spec: str, cases: int) -> str:
    """Plan and check random matrices: skewed senders, receivers or pairs, with holes, tiny and huge amounts."""
    topology, gaps, gains = parse_topology(spec), [], []
    for seed in range(cases):
        plan = plan_amounts(topology, random_amounts(topology.compute_count, seed))
        gains.append(float(min(checked(plan).values()) / plan.time))
        gaps.append(float(plan.gap))
    above = f"gap {np.median(gaps):.4%} median, {np.quantile(gaps, 0.9):.2%} in 90 %, {max(gaps):.2%} most"
    return (
        f"{cases} plans, none behind; {above}; best library {np.median(gains):.3f} x the time, up to {max(gains):.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--routing")
    parser.add_argument("--random", type=int, default=0)
    given = parser.parse_args()
    if given.random:
        sys.stdout.writelines(f"{spec}: {summary(spec, given.random)}\n" for spec in given.networks)
        return
    titles = [
        "network",
        "traffic",
        "bound",
        "plan",
        "direct",
        "sender's rail",
        "receiver's rail",
        "two-level",
        "ms",
        "by",
    ]
    sys.stdout.write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
    for spec in given.networks:
        topology = parse_topology(spec)
        for matrix in traffics(topology.compute_count, given.routing):
            took = []
            for _ in range(3 if rail_fabric(topology) is not None else 1):
                start = time.process_time()
                plan = plan_amounts(topology, matrix)
                took.append(time.process_time() - start)
            bound, times = plan.bound.time, checked(plan)
            cells = [f"{float(time / bound):.4f}" for time in (plan.time, *(times[name] for name in LIBRARY))]
            row = [spec, matrix.name, f"{float(bound):.6g}", *cells, f"{1e3 * min(took):.2f}", plan.method]
            sys.stdout.write(f"| {' | '.join(row)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
