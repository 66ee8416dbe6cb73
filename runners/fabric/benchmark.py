"""`python -m chorale.runners.fabric.benchmark`: what emulated links reach, by rate, network and size, and whether any
exchange is ever faster than its links. Prints tables for documents; needs a few minutes and a quiet machine."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import median

from chorale.runners.fabric.fabric import temporary_fabric
from chorale.runners.fabric.links import LinkKind, LinkOptions
from chorale.runners.fabric.plan import FabricPlan, Stream, plan_fabric
from chorale.runners.fabric.self_test import TimedExchange, busy_streams, highest_speed, needed_s, run_exchanges
from chorale.synth.identity import parse_rational
from chorale.synth.topology.spec import parse_topology

_SPECS = ("hypercube:3", "bipartite:4", "torus:3x3", "ring:4", "a100:1", "uniring:1,4")
_RATES = ("10", "25", "50", "100", "200", "500")
_SIZES_KIB = (2, 16, 64, 256, 1024)
_REPEATS = 7
_LIMIT_S = 100
_IDLE_S = 0.005


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that the options choose."""
    options = _parser().parse_args(arguments)
    kind = LinkKind(options.links)
    for spec in options.topologies:
        for rate in options.rates:
            for line in _lines(spec, parse_rational(rate, "the rate"), kind, options):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chorale.runners.fabric.benchmark", description=__doc__)
    parser.add_argument("--topologies", nargs="+", default=_SPECS, metavar="SPEC")
    parser.add_argument("--rates", nargs="+", default=_RATES, metavar="MBPS")
    parser.add_argument("--sizes-kib", nargs="*", type=int, default=_SIZES_KIB, metavar="KIB", help="of each stream")
    parser.add_argument("--repeats", type=int, default=_REPEATS)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random exchanges on each fabric, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--links", choices=[kind.value for kind in LinkKind], default=LinkKind.WIRE.value)
    return parser


def _lines(spec: str, rate: Fraction, kind: LinkKind, options: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each size: efficiency at the median and at best, highest speed, cores of ranks and of links."""
    topology, name = parse_topology(spec), f"benchmark-{os.getpid()}"
    link_options = LinkOptions(kind)
    plan = plan_fabric(topology, rate, name, link_options)
    with temporary_fabric(topology, rate, name, link_options) as (fabric, _):
        mtu_bytes = fabric.links.mtu_bytes
        for size_kib in options.sizes_kib:
            exchange = TimedExchange(dict.fromkeys(busy_streams(plan), size_kib * 1024), _IDLE_S)
            run = run_exchanges(fabric, [exchange] * (options.repeats + 1), _LIMIT_S)
            ideal_s = needed_s(plan, exchange.sizes_bytes, mtu_bytes)
            reached = [ideal_s / times.duration_s for times in run.times[1:]]
            speed = highest_speed(plan, run, [exchange] * len(run.times), mtu_bytes)
            numbers = (
                f"{median(reached):.3f} | {max(reached):.3f} | {speed:.3f} | {run.cores:.2f} | {run.link_cores:.2f}"
            )
            yield f"| {spec} | {rate} | {size_kib} | {numbers} | {os.getloadavg()[0]:.1f} |"
        if options.random:
            exchanges = random_exchanges(plan, options.random, options.seed)
            run = run_exchanges(fabric, exchanges, _LIMIT_S)
            speed = highest_speed(plan, run, exchanges, mtu_bytes)
            yield f"| {spec} | {rate} | {options.random} random exchanges | highest speed {speed:.4f} |"


def random_exchanges(plan: FabricPlan, count: int, seed: int) -> list[TimedExchange]:
    """Return exchanges of some of all streams between neighbours, of 1 to 64 KiB, with pauses from none to 10 ms."""
    draw = random.Random(seed)  # noqa: S311 - an experiment's draw
    streams = busy_streams(plan)
    return [TimedExchange(_random_sizes(draw, streams), draw.choice((0.0, 0.002, 0.01))) for _ in range(count)]


def _random_sizes(draw: random.Random, streams: Sequence[Stream]) -> dict[Stream, int]:
    return {stream: 2 ** draw.randint(10, 16) for stream in draw.sample(streams, draw.randint(1, len(streams)))}


if __name__ == "__main__":
    main()
