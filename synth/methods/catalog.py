"""Lists all synthesis methods by name, and makes verified schedules with them."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import name_among
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.auto import AUTO, Auto
from chorale.synth.methods.closed_forms import ALGORITHMS, Algorithm
from chorale.synth.methods.method import Method, Options, SynthesisTask
from chorale.synth.schedule.schedule import AnySchedule, Form, Schedule, concatenate, reverse_allgather
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

# Methods are imported inside functions, so that a command imports only the methods that it uses.

MIN_SYMMETRIC_ROOTS = 512
"""Below this number of ranks, trees are not stored in symmetric form, because packing trees for all roots is fast."""

IN_NETWORK, ONE_SHOT = "in-network", "one-shot"
"""Methods that `auto` does not try: one needs switches that reduce or multicast data, the other suits shared memory."""


_REVERSES = {CollectiveName.ALLGATHER: CollectiveName.REDUCE_SCATTER, CollectiveName.BROADCAST: CollectiveName.REDUCE}


class OutwardMethod(Method):
    """A method whose `spread` makes an allgather or broadcast, from which all other collectives are derived.

    A reduce_scatter is an allgather on the transpose (the network with all links reversed), run backwards in time, and
    a reduce is a broadcast run backwards. An allreduce is one of these reductions followed by the allgather or
    broadcast; with a broadcast, rank 0 is the root.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        options: tuple[str, ...],
        spreads: tuple[CollectiveName, ...] = (CollectiveName.ALLGATHER,),
    ) -> None:
        self.spreads = spreads
        backwards = tuple(_REVERSES[collective] for collective in spreads)
        super().__init__(name, summary, (*spreads, *backwards, CollectiveName.ALLREDUCE), options)

    @abstractmethod
    def spread(self, task: SynthesisTask) -> Schedule:
        """Return the allgather or broadcast from which the requested collective is derived."""

    def make(self, task: SynthesisTask) -> AnySchedule:
        topology, collective = task.topology, task.collective
        if collective.name in self.spreads:
            return self.spread(task)
        rooted = Collective(CollectiveName.BROADCAST, collective.root or 0)
        outward = rooted if collective.is_rooted or ALLGATHER.name not in self.spreads else ALLGATHER
        transposed, original_link = transpose_with_links(topology)
        there = self.spread(replace(task, topology=transposed, collective=outward))
        back = reverse_allgather(there, topology, original_link)
        if collective.name != CollectiveName.ALLREDUCE:
            return back
        # If the network is identical to its transpose, one schedule serves both phases: backwards, then forwards.
        is_same = transposed.id == topology.id
        forwards = (
            there.on(topology)
            if is_same
            else self.spread(replace(task, collective=outward, preferred_k=there.trees_per_root))
        )
        return concatenate(back, forwards)


class Bfb(OutwardMethod):
    """Makes breadth-first broadcasts, in symmetric form if the network is large and symmetric."""

    def spread(self, task: SynthesisTask) -> Schedule:
        from chorale.synth.methods.bfb.bfb import bfb_allgather  # noqa: PLC0415

        options = task.options
        return bfb_allgather(task.topology, task.executor, options.chunks, task.progress, options.balanced_bytes)

    def make(self, task: SynthesisTask) -> AnySchedule:
        if form_of(self.name, task.topology) == "columns":
            return super().make(task)
        from chorale.synth.methods.bfb.bfb import symmetric_bfb  # noqa: PLC0415

        options = task.options
        return symmetric_bfb(
            task.topology, task.collective, task.executor, options.chunks,
            progress=task.progress, size_bytes=options.balanced_bytes,
        )  # fmt: skip


class Expand(OutwardMethod):
    """Expands the schedule of a small base network to the large network that the topology's spec builds from it."""

    def spread(self, task: SynthesisTask) -> Schedule:
        from chorale.synth.methods.expand import expand_allgather  # noqa: PLC0415

        return expand_allgather(task.topology, task.executor, task.options.chunks, task.progress)


class TreeMethod(OutwardMethod):
    """Packs trees for each root, without using symmetries or pairs of trees. Schedules contain the method's name."""

    def spread(self, task: SynthesisTask) -> Schedule:
        from chorale.synth.methods.forest.forest import forest  # noqa: PLC0415

        return forest(task, self.name)


class Forest(TreeMethod):
    """Packs trees. First tries pairs of trees (for allreduce), then trees of a few roots and their symmetric images."""

    def make(self, task: SynthesisTask) -> AnySchedule:
        # The trees of a warm start belong to separate phases, so they cannot be used as pairs of trees.
        if task.collective.name == CollectiveName.ALLREDUCE and task.options.warm_start is None:
            from chorale.synth.methods.forest.allreduce_pairs import faster_pairs  # noqa: PLC0415

            pairs = faster_pairs(task)
            if pairs is not None:
                return pairs
        if _may_move_trees(task.topology, task.collective, task.options):
            from chorale.synth.methods.forest.symmetric import symmetric_forest  # noqa: PLC0415

            options = task.options
            defaults = {"k": None, "objective": options.objective, "seed": options.seed}
            moved = symmetric_forest(task.topology, task.collective, self.name, defaults)
            if moved is not None:
                return moved
        return super().make(task)


class AllToAll(Method):
    def make(self, task: SynthesisTask) -> AnySchedule:
        from chorale.synth.methods.alltoall.schedule import alltoall_schedule  # noqa: PLC0415

        return alltoall_schedule(task.topology, task.options.chunks)


class InNetwork(Method):
    """Makes trees over switches that reduce and multicast, or returns the schedule of `auto` if that is faster."""

    def make(self, task: SynthesisTask) -> AnySchedule:
        from chorale.synth.methods.in_network.method import in_network_schedule  # noqa: PLC0415

        return in_network_schedule(task.topology, task.collective, task.options, lambda: AUTO_METHOD.make(task))


def form_of(
    method: str, topology: Topology, collective: Collective = ALLGATHER, options: Options | None = None
) -> Form:
    """Return how `method` stores schedules: "columns" (all transfers) or "symmetric" (only a few ranks' transfers).

    For tree packing, "symmetric" means that this form is tried first. If it fails, the schedule is stored in columns.
    """
    options = options or Options()
    name = AUTO_METHOD.first(topology, collective, options) if method == AUTO else method
    if name == "forest":
        return "symmetric" if _may_move_trees(topology, collective, options) else "columns"
    if name != "bfb":
        return "columns"
    from chorale.synth.methods.bfb.bfb import prefers_symmetric_form  # noqa: PLC0415

    return "symmetric" if prefers_symmetric_form(topology) else "columns"


def _may_move_trees(topology: Topology, collective: Collective, options: Options) -> bool:
    """Return whether to make trees for only a few roots of a large network, and map them to all roots by symmetries."""
    is_plain = not collective.is_rooted and not options.non_default()
    return is_plain and bool(topology.automorphisms) and topology.compute_count >= MIN_SYMMETRIC_ROOTS


_TREE_OPTIONS = ("k", "objective", "seed", "warm_start", "gap")
_PHASES = TreeMethod(
    "forest-phases",
    "allreduce as the reduce_scatter, then the allgather of forest, even if pairs of deeper trees are faster",
    _TREE_OPTIONS,
)
_PHASES.collectives = (CollectiveName.ALLREDUCE,)
_ALL: tuple[Method, ...] = (
    Bfb("bfb", "every shard takes all shortest paths, balanced exactly in each step", ("chunks",)),
    ALGORITHMS["ring"],
    ALGORITHMS["biring"],
    Expand("expand", "the stored schedule of a base network, expanded like the network", ("chunks",)),
    Forest(
        "forest",
        "spanning trees that reach the optimum of the network exactly, also through switches",
        _TREE_OPTIONS,
        (CollectiveName.ALLGATHER, CollectiveName.BROADCAST),
    ),
    _PHASES,
    TreeMethod(
        "blink",
        "the best trees of one root; allreduce as reduce to rank 0, then broadcast",
        ("k", "objective", "seed", "gap"),
        (CollectiveName.BROADCAST,),
    ),
    *ALGORITHMS.values(),  # `ring` and `biring` are listed again, but keep their position above
    AllToAll(
        "alltoall",
        "all-to-all over many routes at the same time, with exact bounds",
        (CollectiveName.ALLTOALL,),
        ("chunks",),
    ),
)

METHOD_ALIASES = {
    "best": AUTO,
    "bidirectionalring": "biring",
    "dbt": "double-binary-tree",
    "halvingdoubling": "rabenseifner",
}
"""Maps names in other libraries and papers, simplified by `chorale.synth.errors.plain`, to names in `METHODS`."""
_NAMED = {method.name: method for method in _ALL}
AUTO_METHOD = Auto(_NAMED)
METHODS: Mapping[str, Method] = {
    **_NAMED,
    AUTO: AUTO_METHOD,
    ONE_SHOT: Algorithm(
        ONE_SHOT, "allreduce in one step, by sending all data to all; not tried by auto: ranks add in different orders",
        (CollectiveName.ALLREDUCE,), "grid.algorithms", "one_shot",
    ),
    IN_NETWORK: InNetwork(
        IN_NETWORK, "trees over switches that add and multicast, or over ranks alone if that is faster",
        _NAMED["forest"].collectives, ("k", "objective", "seed", "gap"),
    ),
}  # fmt: skip
"""All methods, indexed by name, including those that `auto` does not try."""


def method_named(name: str) -> Method:
    return METHODS[name_among("method", name, METHODS, METHOD_ALIASES)]


def synthesize_unverified(
    method: str,
    topology: Topology,
    collective: Collective,
    options: Options | None,
    executor: Executor,
    progress: Progress | None = None,
) -> AnySchedule:
    """Return the unverified schedule that `method` makes, in columns or, on large networks, in symmetric form.

    Raises UnknownName for an unknown method, and InvalidInput for a collective or option that the method does not
    support. If `options` is None, the default options are used.
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
    """Return the verified schedule that `method` makes.

    >>> from synth import SerialExecutor, parse_collective, parse_topology
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> verified.cost.steps, str(verified.cost.bandwidth_factor)
    (2, '3/4')
    """
    schedule = synthesize_unverified(method, topology, collective, options, executor, progress)
    return verify(schedule)
