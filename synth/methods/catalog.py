"""From a method's name to a verified schedule of any collective it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.auto import AUTO, auto_method, first_method
from chorale.synth.methods.closed_forms import ALGORITHMS, Algorithm, pattern_of
from chorale.synth.methods.method import Method, Options, Spread, method_from_allgather, method_from_outward
from chorale.synth.names import name_among
from chorale.synth.schedule.schedule import AnySchedule, Form, Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

MIN_SYMMETRIC_ROOTS = 512
"""Below, packing trees for every root takes a fraction of a second, and rows of all ranks are few."""


def _bfb(topology: Topology, options: Options, executor: Executor, progress: Progress | None) -> Schedule:
    from chorale.synth.methods.bfb.bfb import bfb_allgather  # noqa: PLC0415 (only who asks for the method waits)

    return bfb_allgather(topology, executor, options.chunks, progress, options.size_bytes)


def _ring(topology: Topology, options: Options, _executor: Executor, _progress: Progress | None) -> Schedule:
    from chorale.synth.methods.rings.rings import ring_allgather  # noqa: PLC0415 (as above)

    over_boxes = pattern_of("ring", topology, ALLGATHER)
    if over_boxes is not None:
        return over_boxes.schedule(options.chunks)
    return ring_allgather(topology, bidirectional=False, chunks=options.chunks)


def _biring(topology: Topology, options: Options, _executor: Executor, _progress: Progress | None) -> Schedule:
    from chorale.synth.methods.rings.rings import ring_allgather  # noqa: PLC0415 (as above)

    return ring_allgather(topology, bidirectional=True, chunks=options.chunks)


def _expand(topology: Topology, options: Options, executor: Executor, progress: Progress | None) -> Schedule:
    from chorale.synth.methods.expand.expand import expand_allgather  # noqa: PLC0415 (only who expands waits for it)

    return expand_allgather(topology, executor, options.chunks, progress)


def _alltoall(
    topology: Topology, _collective: Collective, options: Options, _executor: Executor, _progress: Progress | None
) -> Schedule:
    from chorale.synth.methods.alltoall.schedule import alltoall_schedule  # noqa: PLC0415 (few wait for it)

    return alltoall_schedule(topology, options.chunks)


def _trees(method: str) -> Spread:
    """Return what makes allgather and broadcast by `forest`, signed by the method called so."""

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> Schedule:
        from chorale.synth.methods.forest.forest import forest  # noqa: PLC0415 (only who packs trees waits for it)

        return forest(topology, collective, options, executor, method=method, progress=progress)

    return make


def _faster_allreduce(method: Method) -> Method:
    """Return `method` with allreduce by pairs of trees where that is faster; a warm start is one of two phases."""

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> AnySchedule:
        pairs = None
        if collective.name == CollectiveName.ALLREDUCE and options.warm_start is None:
            from chorale.synth.methods.forest.allreduce_pairs import faster_pairs  # noqa: PLC0415 (as above)

            pairs = faster_pairs(topology, options, executor, progress)
        return pairs or method.make(topology, collective, options, executor, progress)

    return replace(method, make=make)


def _compact(method: Method) -> Method:
    """Return `method`, breadth-first broadcast, in symmetric form where the rows of all ranks are too many."""

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> AnySchedule:
        if form_of(method.name, topology) == "columns":
            return method.make(topology, collective, options, executor, progress)
        from chorale.synth.methods.bfb.bfb import symmetric_bfb  # noqa: PLC0415 (as above)

        return symmetric_bfb(
            topology, collective, executor, options.chunks, progress=progress, size_bytes=options.size_bytes
        )

    return replace(method, make=make)


def _compact_trees(method: Method) -> Method:
    """Return `method`, tree packing, in symmetric form on large fabrics where translations carry optimal trees."""

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> AnySchedule:
        if _may_move_trees(topology, collective, options):
            from chorale.synth.methods.forest.symmetric.symmetric_forest import (  # noqa: PLC0415 (as above)
                symmetric_forest,
            )

            defaults = {"k": None, "objective": options.objective, "seed": options.seed, "seeds": options.seeds}
            schedule = symmetric_forest(topology, collective, method.name, defaults)
            if schedule is not None:
                return schedule
        return method.make(topology, collective, options, executor, progress)

    return replace(method, make=make)


def form_of(
    method: str, topology: Topology, collective: Collective = ALLGATHER, options: Options | None = None
) -> Form:
    """Return the form of the schedules that `method` makes of `collective` on `topology`.

    Of trees, "symmetric" means that this form is tried first; where that fails they have columns.
    """
    options = options or Options()
    name = first_method(_NAMED, topology, collective, options) if method == AUTO else method
    if name == "forest":
        return "symmetric" if _may_move_trees(topology, collective, options) else "columns"
    if name != "bfb":
        return "columns"
    from chorale.synth.methods.bfb.bfb import prefers_symmetric_form  # noqa: PLC0415 (as above)

    return "symmetric" if prefers_symmetric_form(topology) else "columns"


def _may_move_trees(topology: Topology, collective: Collective, options: Options) -> bool:
    """Whether it pays to try trees in symmetric form, and nothing is asked of them that they cannot do."""
    is_plain = not collective.is_rooted and not options.non_default()
    return is_plain and bool(topology.automorphisms) and topology.compute_count >= MIN_SYMMETRIC_ROOTS


def _closed_form(algorithm: Algorithm) -> Method:
    def make(
        topology: Topology, collective: Collective, options: Options, _executor: Executor, _progress: Progress | None
    ) -> Schedule:
        return algorithm.pattern(topology, collective).schedule(options.chunks)

    return Method(algorithm.name, algorithm.summary, algorithm.collectives, ("chunks",), make)


_ALL = (
    _compact(
        method_from_allgather(
            "bfb", "every shard along all shortest paths, balanced exactly step by step", ("chunks",), _bfb
        )
    ),
    method_from_allgather(
        "ring",
        "around one cycle of all ranks, in one direction; over boxes of GPUs one ring per network port",
        ("chunks",),
        _ring,
    ),
    method_from_allgather("biring", "around one cycle of all ranks, half the data each way", ("chunks",), _biring),
    method_from_allgather(
        "expand", "the stored schedule of a base network, expanded as its spec says", ("chunks",), _expand
    ),
    _faster_allreduce(
        _compact_trees(
            method_from_outward(
                "forest",
                "down trees that reach the optimum of the network exactly, through switches too",
                (CollectiveName.ALLGATHER, CollectiveName.BROADCAST),
                ("k", "objective", "seed", "seeds", "warm_start"),
                _trees("forest"),
            )
        )
    ),
    replace(
        method_from_outward(
            "forest-phases",
            "allreduce as reduce_scatter, then allgather of forest, even where pairs of higher trees are faster",
            (CollectiveName.ALLGATHER,),
            ("k", "objective", "seed", "seeds", "warm_start"),
            _trees("forest-phases"),
        ),
        collectives=(CollectiveName.ALLREDUCE,),
    ),
    method_from_outward(
        "blink",
        "down the best trees of one root; allreduce by way of rank 0",
        (CollectiveName.BROADCAST,),
        ("k", "objective", "seed", "seeds"),
        _trees("blink"),
    ),
    *(_closed_form(algorithm) for algorithm in ALGORITHMS.values()),
    Method(
        "alltoall",
        "from every rank to every other over all routes at once, between exact bounds",
        (CollectiveName.ALLTOALL,),
        ("chunks",),
        _alltoall,
    ),
)

METHOD_ALIASES = {
    "best": AUTO,
    "bidirectionalring": "biring",
    "dbt": "double-binary-tree",
    "halvingdoubling": "rabenseifner",
}
"""Names of other libraries and papers, as `plain` spells them."""
_NAMED = {method.name: method for method in _ALL}
_AUTO = auto_method(_NAMED)
IN_NETWORK = "in-network"


def _in_network(
    topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
) -> AnySchedule:
    from chorale.synth.methods.in_network.method import in_network_schedule  # noqa: PLC0415 (few wait for it)

    def ranks_alone() -> AnySchedule:
        return _AUTO.schedule(topology, collective, options, executor, progress)

    return in_network_schedule(topology, collective, options, ranks_alone)


METHODS: Mapping[str, Method] = {
    **_NAMED,
    AUTO: _AUTO,
    IN_NETWORK: Method(
        IN_NETWORK,
        "trees over switches that add and multicast; those of ranks alone where these are faster",
        _NAMED["forest"].collectives,
        ("k", "objective", "seed"),
        _in_network,
    ),
}
"""All methods by name."""


def method_named(name: str) -> Method:
    """Return the method called `name`, or raise UnknownName with the names that exist."""
    return METHODS[name_among("method", name, METHODS, METHOD_ALIASES)]


def synthesize_unverified(
    method: str,
    topology: Topology,
    collective: Collective,
    options: Options | None,
    executor: Executor,
    progress: Progress | None = None,
) -> AnySchedule:
    """Return the schedule that `method` makes, in the form that suits its size, not yet verified.

    options: what is asked of the method; None asks for nothing in particular.
    Raises InvalidInput for an unknown method, and for a collective or an option that it does not know.
    """
    return method_named(method).schedule(topology, collective, options or Options(), executor, progress)


def synthesize(
    method: str,
    topology: Topology,
    collective: Collective,
    options: Options | None,
    executor: Executor,
    progress: Progress | None = None,
) -> VerifiedSchedule:
    """Return the verified schedule that `method` makes for `collective` on `topology`, timed at `options.size_bytes`.

    >>> from synth import SerialExecutor, parse_collective, parse_topology
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> verified.cost.steps, str(verified.cost.bandwidth_factor)
    (2, '3/4')
    """
    schedule = synthesize_unverified(method, topology, collective, options, executor, progress)
    return verify(schedule, options.size_bytes if options else None)
