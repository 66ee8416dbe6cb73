"""Claims of optimality on random fabrics at the edges, against references that share no code with what they check.

    python -m tests.reference.claims --method forest --count 10000 --seed 1

prints what was checked, refused, wrong, and more than 1 % behind its own bound; exit 1 where anything is wrong.
forest: all cuts, every smaller k. alltoall: the whole linear program by HiGHS. bfb: room for every set of shards, in
rationals. allreduce: a linear program with all cuts, splits in rationals. others: all cuts, with roots.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.certificate import check_alltoall_certificate, check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import optimum
from chorale.synth.bounds.tree_pairs import pairs_if_countable
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.synth.verify.bfb_certificate import least_time
from chorale.synth.verify.verify import verify
from tests.reference.cuts import AllCuts, best_rate, faults_of_split, slowest_cut
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.reference.step_times import least_broadcast_time
from tests.synthesis import predicted_s

USUAL = tuple(map(Fraction, (1, 1, 2, 3, 10, 25, 50, 100, 300, 450)))
DECIMAL = tuple(map(Fraction, ("46.875", "12.5", "0.3", "31.5", "185.4", "2.25", "5/11", "1/3", "2/7", "7/3")))


def edge_fabric(seed: int, most_ranks: int = 5, most_switches: int = 2, latencies: bool = False) -> Topology:
    """Return 2 to `most_ranks` ranks, strongly connected: links both ways or in cycles, parallel ones too.

    Every fourth seed has capacities over eighteen orders of magnitude, the others usual or decimal ones or a mixture.
    Switches need not pass on as much as they get.
    """
    rng = random.Random(seed)
    ranks, switches = rng.randint(2, most_ranks), rng.randint(0, most_switches)
    nodes = list(range(ranks + switches))
    pairs = _pairs(rng, nodes)
    links = [
        Link(src, dst, _bandwidth(rng, seed % 4), _latency(rng) if latencies else Fraction(0)) for src, dst in pairs
    ]
    names = tuple(str(node) for node in nodes)
    return Topology(f"edge {seed}", names, ranks, Links.build(links), "GB/s")


def _pairs(rng: random.Random, nodes: list[int]) -> list[tuple[int, int]]:
    order = rng.sample(nodes, len(nodes))
    pairs = [(order[place - 1], order[place]) for place in range(len(order))]
    if rng.random() < 0.5:  # a tree both ways in place of a cycle
        tree = [(order[rng.randrange(place)], order[place]) for place in range(1, len(order))]
        pairs = tree + [(dst, src) for src, dst in tree]
    for _ in range(rng.randint(0, 2 * len(nodes))):
        src, dst = rng.sample(nodes, 2)
        pairs += [(src, dst)] * rng.choice((1, 1, 1, 2, 4)) + ([(dst, src)] if rng.random() < 0.5 else [])
    return pairs


def _bandwidth(rng: random.Random, kind: int) -> Fraction:
    if kind == 0:
        return Fraction(rng.randint(1, 9)) * Fraction(10) ** rng.randint(-9, 8)
    return rng.choice((USUAL, DECIMAL, USUAL + DECIMAL)[kind - 1])


def _latency(rng: random.Random) -> Fraction:
    return Fraction(rng.choice((0, 0, 1, 1000, 5000, 20000)), 10**9)


MOST_SMALLER = 200
OTHER_CHUNKS = (1, 5, 7, 64, 80, 96, 100, 128, 160, 200, 256)
BEHIND = Fraction(101, 100)
CLOSE = 1e-6
FAR_APART = 10**5
SIZES = (2**26, 1, 4096, 10**6 + 3)


class FalseClaimError(Exception):
    """A claim that a reference beats."""


def forest(seed: int) -> bool:
    """The optimum and its k against all cuts; the schedule reaches it. Return whether it is behind its bound."""
    topology = edge_fabric(seed)
    best, cuts = optimum(topology, ALLGATHER), AllCuts(topology, (1,) * topology.compute_count)
    _claim(best.time_per_byte == slowest_cut(topology, ALLGATHER), "the optimum is not that of all cuts")
    _claim(cuts.carries(best.trees_per_bandwidth, best.k), "k trees do not fit")
    for k in range(1, min(best.k, MOST_SMALLER)) if best.is_fewest else ():
        rate = k * best.time_per_shard
        _claim(not (cuts.carries(rate, k) and _passes_on(topology, rate)), f"k = {k} is enough, not {best.k}")
    if not best.is_reached_by_trees(topology) or best.k > 10**5:
        return False
    verified = verify(_schedule("forest", topology, ALLGATHER, Options()))
    _claim(verified.cost.time_per_byte == best.time_per_byte, "the schedule is behind an optimum that trees reach")
    return False


def alltoall(seed: int) -> bool:
    """Bounds around the program's optimum, a certificate, and a schedule within the bounds."""
    topology = edge_fabric(seed)
    rate, reference = alltoall_rate(topology), full_alltoall_rate(topology)
    schedule = alltoall_schedule(topology)
    reached = 1 / (verify(schedule).cost.time_per_byte * topology.compute_count)
    upper = check_alltoall_certificate(topology, schedule.certificate)
    _claim(rate.lower <= rate.upper and reached <= min(rate.upper, upper), "a rate is above its own bound")
    if spread(topology) <= FAR_APART and not np.isnan(reference):
        _claim(float(min(rate.upper, upper)) >= reference * (1 - CLOSE), "the program beats the upper bound")
        _claim(float(max(rate.lower, reached)) <= reference * (1 + CLOSE), "a flow beats the program")
    return reached * BEHIND < min(rate.upper, upper)


def bfb(seed: int) -> bool:
    """Times are what sets of shards need on their links, exactly; no other number of chunks is over 1 % faster."""
    topology = edge_fabric(seed, most_switches=0, latencies=seed % 2 == 1)
    size = SIZES[seed // 2 % len(SIZES)] if seed % 2 else None
    verified = synthesize("bfb", topology, ALLGATHER, Options(size_bytes=size), SerialExecutor())
    reached = verified.cost.time_per_byte if size is None else predicted_s(verified, size)
    least = least_broadcast_time(topology, None, size)
    _claim(reached == least_broadcast_time(topology, verified.schedule.chunks_per_shard, size), "chunks wait too long")
    if size is not None:
        _claim(
            least_time(topology, verified.schedule.certificate) == least, "the bound is not that of divisible shards"
        )
    for chunks in OTHER_CHUNKS if reached > least * BEHIND else ():
        _claim(least_broadcast_time(topology, chunks, size) * BEHIND >= reached, f"{chunks} chunks are faster")
    return reached > least * BEHIND


def allreduce(seed: int) -> bool:
    """Pairs of trees against a program with all cuts and in rationals; no small k beats what is chosen without one."""
    topology = edge_fabric(seed)
    schedule = _schedule("forest", topology, ALLREDUCE, Options())
    reached = verify(schedule).cost.time_per_byte
    _claim(isinstance(schedule, Schedule) and busiest_link(schedule) == reached, "a link is busy for longer")
    _check_bound(topology, ALLREDUCE, reached)
    pairs = pairs_if_countable(topology)
    if pairs is None:
        return False
    split, program = pairs.split, best_rate(topology)
    arcs = list(zip(split.arcs.src.tolist(), split.arcs.dst.tolist(), strict=True))
    faults = faults_of_split(topology, arcs, split.roots, split.gather, split.reduce)
    _claim(not faults and pairs.bound <= pairs.time_per_byte == 1 / sum(split.roots), f"a split that is none: {faults}")
    if program is not None and spread(topology) <= FAR_APART:
        _claim(float(1 / pairs.time_per_byte) <= program * (1 + CLOSE), "a split beats the program of all cuts")
        _claim(float(1 / pairs.bound) >= program * (1 - CLOSE), "the program of all cuts beats the bound on pairs")
    for k in (1, 2):
        other = verify(_schedule("forest", topology, ALLREDUCE, Options(k=k))).cost.time_per_byte
        _claim(other * Fraction(1001, 1000) >= reached, f"k = {k} is faster")
    return reached > min(pairs.time_per_byte, reached) * BEHIND


def others(seed: int) -> bool:
    """All other collectives and roots: bounds are those of all cuts, and no schedule of trees is below its bound."""
    topology = edge_fabric(seed)
    root = seed // 3 % topology.compute_count
    names = (CollectiveName.REDUCE_SCATTER, CollectiveName.BROADCAST, CollectiveName.REDUCE)
    collective = parse_collective(names[seed % 3].value, root)
    schedule = _schedule("forest", topology, collective, Options())
    reached = verify(schedule).cost.time_per_byte
    _claim(isinstance(schedule, Schedule) and busiest_link(schedule) == reached, "a link is busy for longer")
    bound = _check_bound(topology, collective, reached)
    _claim(bound == slowest_cut(topology, collective), "the bound is not that of all cuts")
    return reached > bound * BEHIND


METHODS: dict[str, Callable[[int], bool]] = {
    "forest": forest,
    "alltoall": alltoall,
    "bfb": bfb,
    "allreduce": allreduce,
    "others": others,
}


def run(method: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how many cases were checked, refused, behind and wrong, and a line for each wrong one."""
    counts: Counter[str] = Counter(checked=0, refused=0, behind=0, wrong=0)
    lines: list[str] = []
    for case in range(seed * 10**6, seed * 10**6 + count):
        try:
            is_behind = METHODS[method](case)
        except InvalidInput:
            counts["refused"] += 1
        except Exception as error:  # whatever a claim ends with is a finding
            counts["wrong"] += 1
            lines.append(f"{method} {case}: {type(error).__name__}: {error}")
        else:
            counts["checked"] += 1
            counts["behind"] += is_behind
    return counts, lines


def busiest_link(schedule: Schedule) -> Fraction:
    """Return the time per byte of the vector that the busiest link needs for all that is sent over it."""
    rows, routes, links = schedule.transfers, schedule.routes, list(schedule.topology.links)
    chunks = [0] * len(links)
    for route, first, behind in zip(rows.route.tolist(), rows.lo.tolist(), rows.hi.tolist(), strict=True):
        for link in routes.link_ids[int(routes.offsets[route]) : int(routes.offsets[route + 1])].tolist():
            chunks[link] += behind - first
    parts = schedule.topology.compute_count * schedule.chunks_per_shard
    return max(Fraction(count, parts) / link.bandwidth for count, link in zip(chunks, links, strict=True))


def spread(topology: Topology) -> Fraction:
    """Return the widest link in narrowest ones."""
    widths = topology.links.bandwidths
    return max(widths) / min(widths)


def _schedule(method: str, topology: Topology, collective: Collective, options: Options) -> AnySchedule:
    return synthesize_unverified(method, topology, collective, options, SerialExecutor())


def _claim(holds: bool, what: str) -> None:
    if not holds:
        raise FalseClaimError(what)


def _check_bound(topology: Topology, collective: Collective, reached: Fraction) -> Fraction:
    """Return the bound, whose certificate holds and which `reached` is not below."""
    bound = lower_bound(topology, collective, reached)
    check_certificate(topology, collective, bound.to_json(topology))
    _claim(reached >= bound.value, "a schedule is below its bound")
    return bound.value


def _passes_on(topology: Topology, rate: Fraction) -> bool:
    for switch in range(topology.compute_count, topology.node_count):
        gets = sum(int(rate * link.bandwidth) for link in topology.links if link.dst == switch)
        if gets < sum(int(rate * link.bandwidth) for link in topology.links if link.src == switch):
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=sorted(METHODS), required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts, lines = run(options.method, options.count, options.seed)
    sys.stdout.write("\n".join([*lines, f"{options.method} seed {options.seed}: {dict(counts)}"]) + "\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
