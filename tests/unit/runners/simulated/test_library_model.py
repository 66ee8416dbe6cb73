"""What libraries take by their own models: channels, rates, choices, and that no baseline is weaker."""

import pytest

from chorale.experiments.ours.in_network import LARGEST_ERROR, PUBLISHED, PublishedRate
from chorale.runners.simulated.library_graph import LibraryGraph, library_fabric
from chorale.runners.simulated.library_model import (
    LibraryAlgorithm,
    baseline_label,
    library_algorithms,
    library_best,
    library_choice,
)
from chorale.synth.bounds.lower_bound import bound_of_ranks, in_network_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.schedule_files import load_topology

SIZES = [2**power for power in range(10, 35)]


def best(spec: str, collective=ALLREDUCE) -> LibraryAlgorithm:  # type: ignore[no-untyped-def]
    return library_best(library_algorithms(parse_topology(spec), collective))


@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_large_sizes_are_near_what_is_published(published: PublishedRate) -> None:
    size = 2**33
    [time] = {each.seconds(size) for each in library_algorithms(parse_topology(published.spec))
              if (each.name, each.protocol) == (published.algorithm, "simple")}  # fmt: skip
    assert size / time / 1e9 == pytest.approx(published.algbw, rel=LARGEST_ERROR)


@pytest.mark.parametrize(
    ("spec", "rings", "nvls"),
    [
        # 18 links of 20.6 carry 6 rings of 60, split in two; with 8 NICs of 50, 8 rings of 45.
        ("h100:1", LibraryGraph(12, 30, 30), LibraryGraph(8, 40, 40)),
        ("h100:2", LibraryGraph(8, 45, 45), LibraryGraph(8, 40, 48)),
        ("a100:1", LibraryGraph(12, 20, 20), None),  # 12 links of 20
        ("a100:2", LibraryGraph(8, 24, 24), None),
        ("b200:1", LibraryGraph(16, 45, 45), LibraryGraph(8, 80, 80)),
        ("mi300x:1", LibraryGraph(7, 48, 48), None),
    ],
)
def test_channels_are_those_of_the_graph_search(spec: str, rings: LibraryGraph, nvls: LibraryGraph | None) -> None:
    fabric = library_fabric(parse_topology(spec))
    assert fabric.ring_graph() == rings
    assert fabric.nvls_graph() == nvls


@pytest.mark.parametrize(
    ("spec", "label", "algbw"),
    [
        ("a100:1", "NCCL 2.28.3 (ring, 24 channels)", 240 * 8 / 14),  # published: busbw 230 to 240
        ("h100:1", "NCCL 2.28.3 (nvls, 16 channels)", 272.0),
        ("b200:1", "NCCL 2.28.3 (nvls, 16 channels)", 473.6),  # published: busbw 830 to 840
        ("mi300x:1", "RCCL 2.27 (ring, 7 channels)", 192.0),  # AMD: 7 x 48 usable, busbw 310 to 330
    ],
)
def test_the_baseline_is_what_the_library_takes(spec: str, label: str, algbw: float) -> None:
    assert baseline_label(best(spec).document()) == label
    assert best(spec).bytes_per_s / 1e9 == pytest.approx(algbw)


def test_libraries_are_those_of_the_network() -> None:
    """Four A100 with three bundles of four NVLinks each: 3 x 80 by NCCL's rates, as a single ring would not have."""
    topology = load_topology("file:tests/data/fabric_tools/a100x4-nv4.txt")
    assert library_best(library_algorithms(topology)).bytes_per_s / 1e9 == pytest.approx(160)
    one_for_each_host = library_algorithms(parse_topology("railclos:4,1,50,1"), ALLGATHER)
    assert {each.name for each in one_for_each_host} == {"ring", "pat"}
    algorithm = best("hypercube:3")
    assert (algorithm.library, algorithm.method, algorithm.bytes_per_s) == ("MPICH", "rabenseifner", 4 / 7)
    assert {each.library for each in library_algorithms(parse_topology("fattree:4"))} == {"MPICH", "Open MPI", "NCCL"}


@pytest.mark.parametrize(
    "spec", ["h100:1", "a100:2", "mi300x:2", "mi250:1", "nvl72:1", "railclos:2,4,25,1", "torus:4x4"]
)
@pytest.mark.parametrize("collective", [ALLREDUCE, ALLGATHER], ids=lambda each: each.name.value)
def test_no_model_is_faster_than_what_is_proven(spec: str, collective) -> None:  # type: ignore[no-untyped-def]
    topology = parse_topology(spec)
    unit = 1 if topology.bandwidth_unit == "link" else 1e9
    bound = in_network_bound(topology, collective) or bound_of_ranks(topology, collective)
    for each in library_algorithms(topology, collective):
        assert each.bytes_per_s / unit <= float(1 / bound.value) * (1 + 1e-9)


def test_choices_depend_on_switches_and_sizes() -> None:
    """Not on A100, whose switches only pass on; small sizes take LL."""
    for spec, name in {"h100:1": "nvls", "h100:2": "nvls_tree", "a100:1": "ring", "mi300x:1": "ring"}.items():
        algorithms = library_algorithms(parse_topology(spec), ALLREDUCE)
        assert library_choice(algorithms, SIZES[-1]).name == name
        assert library_choice(algorithms, SIZES[0]).protocol == "ll"
    # A message crosses two links of 0.1 us and 0.3 us each: three steps of recursive doubling, six of the others.
    algorithms = library_algorithms(parse_topology("switch:8,25"), ALLREDUCE, "MPI")
    small, large = library_choice(algorithms, 64), library_choice(algorithms, 2**24)
    assert (small.name, large.name) == ("recursive_doubling", "reduce_scatter_allgather")
    assert small.latency_s == pytest.approx(3 * 2 * 0.4e-6)
    assert large.latency_s == pytest.approx(6 * 2 * 0.4e-6)
