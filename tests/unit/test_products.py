"""What the functions of `chorale` return: objects of the packages below, with the next step as a method."""

import pickle
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest

import chorale as ch
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.plots.layout import Picture


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a data folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "data"))
    return tmp_path


def test_a_network_draws_itself() -> None:
    net = ch.topology("a100:2")
    assert repr(net) == "<a100:2: 16 ranks, 20 switches, 96 links>"
    assert ElementTree.fromstring(net._repr_html_()).tag.endswith("svg")
    assert net._repr_svg_().endswith(net._repr_html_())
    assert isinstance(net, Topology)
    assert ch.topology(net) is net


def test_a_network_that_is_too_large_to_draw_is_told() -> None:
    net = ch.topology("complete:128")
    assert net._repr_svg_() is None
    assert "complete:128: 128 ranks, 16256 links" in net._repr_html_()


def test_a_schedule_says_how_good_it_is() -> None:
    net = ch.topology("torus:4x4")
    schedule = net.synthesize("AllReduce")
    assert (schedule.method, schedule.algbw, schedule.gap) == ("bfb", 32 / 15, 0)
    check_certificate(schedule.schedule.topology, schedule.schedule.collective, schedule.certificate)
    assert repr(schedule) == "<bfb allreduce on torus:4x4: 8 steps, algbw 2.13 × link rate (32/15), optimal, proven>"
    assert "<th>algbw</th>" in schedule._repr_html_()
    ring = net.synthesize("allreduce", "ring")
    assert ring.gap == ring.cost.time_per_byte / schedule.cost.time_per_byte - 1 == Fraction(3)
    assert "300.00% above the proven bound" in repr(ring)
    assert net.bound("allreduce").value == schedule.cost.time_per_byte
    assert isinstance(schedule, VerifiedSchedule)
    assert schedule.topology.id == net.id


def test_the_ways_on_from_a_schedule(folder: Path) -> None:
    schedule = ch.topology("ring:4").synthesize("allreduce", "biring")
    times = schedule.simulate("1MiB:16MiB:x4", link_gbps=100)
    assert list(times) == [2**20, 2**22, 2**24]
    assert times == ch.simulate(schedule, "1MiB:16MiB:x4", link_gbps=100)
    assert repr(times).startswith("<biring allreduce on ring:4, predicted: 1MiB in ")
    assert times.plot().svg.lstrip().startswith("<?xml")
    assert times.plot().save("times.png").read_bytes().startswith(b"\x89PNG")
    program = schedule.lower("MSCCL")
    assert program.save("a.xml").read_text() == program.text
    assert repr(program).startswith("<msccl-xml allreduce: 4 ranks")
    assert program.plot("1MiB").svg.lstrip().startswith("<?xml")
    run = schedule.run("1MiB", "simulated", link_mbps=100_000)
    assert run.algbw[2**20] == pytest.approx(2**20 / run.times[2**20] / 1e9)
    assert "1MiB in " in repr(run)
    assert "right" in run._repr_html_()
    assert ch.verify(str(schedule.save("a.parquet"))).schedule.id == schedule.schedule.id
    assert schedule.plot().svg
    assert schedule.topology.plot().svg


def test_products_cross_process_borders() -> None:
    schedule = ch.synthesize("ring:4", method="ring")
    again = pickle.loads(pickle.dumps(schedule))
    assert (again.method, again.gap, again.schedule.id) == ("ring", schedule.gap, schedule.schedule.id)
    assert pickle.loads(pickle.dumps(ch.topology("ring:4"))).id == schedule.topology.id


def test_without_the_extra_a_picture_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(_path: Path) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    assert Picture(draw)._repr_svg_() is None
    with pytest.raises(ch.ChoraleError, match=r"chorale-collectives\[plot\]"):
        _ = Picture(draw).svg


def test_gaps_are_to_the_bound_of_what_acts() -> None:
    together = ch.topology("torus:3x3").synthesize("alltoall")
    assert (together.method, together.gap, together.certificate["kind"]) == ("alltoall", 0, "alltoall-prices")
    adding = ch.topology("h100:2").synthesize("allreduce", "in-network")
    assert (adding.gap, adding.certificate["in_network"]) == (0, True)


def test_functions_take_schedules_in_any_form_and_show_them_in_a_line(tmp_path):
    made = ch.synthesize("ring:4")
    assert made.schedule.collective.name == "allreduce"
    path = made.save(tmp_path / "made.parquet")
    for given in (made, made.schedule, path, str(path)):
        assert ch.verify(given).schedule.id == made.schedule.id
        assert ch.lower(given).program.origin == made.schedule.id
        assert ch.simulate(given, ["64KiB", 2**20], link_gbps=100).keys() == {2**16, 2**20}
    shown = (made, made.schedule, made.lower(), made.lower().program, ch.topology("a100:2").links)
    assert max(len(repr(each)) for each in shown) < 120
    assert "find" in dir(ch)
    assert not [name for name in dir(ch) if name.startswith("_") and name != "__version__"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ch.synthesize("torus:2x2", method="allreduce"), 'write collective="allreduce"'),
        (lambda: ch.synthesize("torus:2x2", "bfb"), 'bfb is a method: write method="bfb"'),
        (
            lambda: ch.synthesize("torus:2x2", objective="low"),
            "'height', 'trees' or 'balanced', got 'low'; see the help",
        ),
        (lambda: ch.synthesize("torus:2x2", chunks=1.5), "chunks should be a valid integer, got a number with a frac"),
        (lambda: ch.synthesize("torus:2x2", 3), "unknown collective '3'; choose from"),
        (lambda: ch.synthesize("torus:2x2", k=0), "k must be at least 1, got 0; leave out k for"),
        (lambda: ch.simulate(ch.synthesize("ring:4")), "such as link_gbps=400"),
        (lambda: ch.simulate(ch.synthesize("ring:4"), [1024, 0], link_gbps=1), "a size must be between 1 byte and"),
        (lambda: ch.verify("torus:2x2"), 'chorale.synthesize("torus:2x2") returns one'),
        (lambda: ch.topology(5), "give a spec such as 'torus:4x4', a topology or a NetworkX graph"),
    ],
)
def test_errors_speak_of_arguments(call, message):
    with pytest.raises(ch.ChoraleError) as caught:
        call()
    assert message in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(("collective", "root"), [("broadcast", 0), ("reduce", 0), ("alltoall", None)])
def test_every_collective_is_tuned_and_goes_into_a_table(collective, root):
    runner = {"kind": "simulated", "link_mbps": 1000}
    tuned = ch.tune("torus:2x2", collective, sizes="64KiB", trials=2, runner=runner, name=collective)
    assert tuned.best[2**16]["speedup_vs_baseline"] >= 1
    (entry,) = tuned.table.entries
    assert (entry.collective, entry.root, entry.measured["runner"]) == (collective, root, "simulated")
