"""Machines and fabrics as people have them: bounds at physical rates, what the library is expected to reach, guesses.

The right values follow from data sheets and from what NCCL and RCCL reckon with; none is taken from a run of Chorale.
"""

import json
from dataclasses import asdict
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

import chorale as ch
from chorale.runners.api.base import bus_factor
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.failures import single_failures
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.files.schedule_files import absolute_spec, load_topology, save_topology
from chorale.tuner.reports.bound import bound_report
from tests.dumps import cpu, described, pci, system

DATA = Path(__file__).parents[3] / "data" / "machines"
PUBLIC = json.loads((DATA / "public.json").read_text())["machines"]
FIELDS = ("what", "value", "source", "reference")


def network(name: str, **options: Any) -> Topology:
    if "machine" in options:
        options["machine"] = str(DATA / options["machine"])
    return read_network(str(DATA / name), MachineOptions(**options)).topology


def algbw(topology: Topology, collective: str = "allreduce") -> Fraction:
    return 1 / bound_report(topology, parse_collective(collective, 0), None).bound.value


def both(topology: Topology, collective: str = "allreduce") -> tuple[float, float]:
    """Return (expected from the library, bound), in GB/s."""
    assert topology.expected is not None
    return float(algbw(topology.expected, collective)), float(algbw(topology, collective))


NVSWITCH_8 = 8 / 14  # allreduce: 2 (n - 1) / n of the vector through the links of a GPU
CASES = (
    ("spark102.xml", 2, 48, 63, {"boxes": 2}, "allgather"),  # C2C; two NICs behind four lanes each
    ("onegpu-twonics.xml", 2, 48, 63, {"boxes": 2}, "allgather"),  # both through the GPU's slot
    ("b200-good.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, {"model": "B200"}, "allreduce"),
    ("b200-good.txt", 8, 18 * 20.6 * NVSWITCH_8, 18 * 25 * NVSWITCH_8, {"model": "H200"}, "allreduce"),
    ("b200-collect-env.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, {}, "allreduce"),
    ("gb200-2trays.xml", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, {}, "allreduce"),
    ("a100x4-nv4.txt", 4, 3 * 4 * 20 / 1.5, 3 * 4 * 25 / 1.5, {}, "allreduce"),
    ("mi250x-rocm-smi.txt", 8, 150 * 36 / 50, 150, {}, "allreduce"),
    ("mi250x-amd-smi.txt", 8, 150 * 36 / 50, 150, {}, "allreduce"),
    ("mig1716.xml", 9, 22, 63, {}, "allreduce"),  # two ranks share the slot of one GPU; sockets at 22 for NCCL
    ("ib-rails.txt", 4, 24 * 4 / 3, 31.5 * 4 / 3, {"machine": "onegpu-twonics.xml"}, "allgather"),
    ("ib-rails.txt", 2, 48, 63, {"machine": "spark102.xml", "boxes": 2}, "allgather"),
)


@pytest.mark.parametrize(("name", "ranks", "expected", "bound", "options", "collective"), CASES)
def test_bound_and_expectation(name, ranks, expected, bound, options, collective):
    topology = network(name, **options)
    assert topology.compute_count == ranks
    assert both(topology, collective) == pytest.approx((expected, bound))
    assert {tuple(asdict(fact)) for fact in topology.assumptions} == {FIELDS}


def _totals(topology: Topology) -> dict[tuple[int, int], Fraction]:
    totals: dict[tuple[int, int], Fraction] = {}
    for link in topology.links:
        totals[link.src, link.dst] = totals.get((link.src, link.dst), Fraction(0)) + link.bandwidth
    return totals


@pytest.mark.parametrize(
    ("name", "options", "lost", "expected", "bound"),
    [
        ("one-off.txt", {}, "node=3", 18 * 20.6 * 0.75, 18 * 25 * 0.75),
        ("b200-one-gpu-off-nvlink.txt", {"model": "B200"}, "node=2", 18 * 40.1 * 7 / 12, 18 * 50 * 7 / 12),
    ],
)
def test_nvlinks_towards_a_switch_are_of_the_gpu_and_not_of_each_pair(tmp_path, name, options, lost, expected, bound):
    save_topology(network(name, **options), tmp_path / "a.json")
    assert both(load_topology(f"without(file:{tmp_path / 'a.json'};{lost})")) == pytest.approx((expected, bound))
    for machine, part in ((network("a100x4-nv4.txt"), "1/4"), (network("b200-good.txt", model="B200"), "1/18")):
        parts = {failure.part for failure in single_failures(machine, ["nvlink"])} - {None}
        assert parts == {Fraction(part)}  # one of several may be lost


@pytest.mark.parametrize("machine", PUBLIC, ids=[machine["name"] for machine in PUBLIC])
def test_public_machines_are_not_faster_than_their_bounds(tmp_path, machine):
    """busbw in GB/s, as measurements are published. Switches that add count where the machine has them."""
    path = tmp_path / ("machine.txt" if machine["form"] == "matrix" else "machine.xml")
    if machine["form"] != "file":
        path.write_bytes(described(machine))
    topology = network(machine.get("path", str(path)), model=machine.get("model"), boxes=machine.get("boxes"))
    report, factor = bound_report(topology, ALLREDUCE, None), bus_factor("allreduce", machine["ranks"])
    assert topology.compute_count == machine["ranks"]
    expected, bound = both(topology)
    assert (factor * expected, factor * bound) == pytest.approx((machine["expected"], machine["bound"]))
    most = machine["bound"]
    if "in_network" in machine:
        most = factor * float(1 / report.in_network.value)
        assert most == pytest.approx(machine["in_network"])
    assert machine.get("measured", 0) <= most
    unknown = machine["form"] == "hwloc" and "matrix" not in machine  # NVLinks by the name of the GPUs
    assert ("under" in report.bound.to_json(topology)) == unknown


def test_slots_of_sleeping_gpus_are_those_of_their_model(tmp_path):
    """hwloc sees the current rate of a link: 4 GB/s of an idle GPU in a slot of 63 GB/s."""
    (h200,) = (machine for machine in PUBLIC if machine["name"] == "h200")
    card = h200 | {"slot": 4.0, "nvswitches": 0, "gpu": {"id": "10de:2331", "name": "NVIDIA H100 PCIe"}, "flat": True}
    (tmp_path / "a.xml").write_bytes(described(card))
    topology = network(str(tmp_path / "a.xml"))
    assert float(algbw(topology)) == pytest.approx(63 / 1.75)
    assert "under" in bound_report(topology, ALLREDUCE, None).bound.to_json(topology)


def test_a_guess_that_decides_is_never_silent(tmp_path):
    unnamed, named = network("b200-good.txt"), network("b200-good.txt", model="B200")
    (guess,) = (fact for fact in unnamed.assumptions if fact.source == "guess")
    assert "--model" in guess.reference
    assert "50 GB/s" in guess.what
    certificates = [bound_report(each, ALLREDUCE, None).bound.to_json(each) for each in (unnamed, named)]
    assert certificates[0]["under"] == "assumptions"
    assert "under" not in certificates[1]
    path, wanted = DATA / "b200-good.txt", algbw(named)
    assert algbw(load_topology(f"file:{path}?model=B200")) == algbw(ch.topology(str(path), model="B200")) == wanted
    assert algbw(load_topology(f"without(file:{path}?model=B200;node=3)")) > wanted
    with pytest.raises(InvalidInput, match="unknown GPU model '"):
        ch.topology(str(path), model="B2000")
    for name in ("gb200-2trays.xml", "ib71.txt"):
        with pytest.raises(InvalidInput, match=r"states its GPU model itself|--model can only be used with --machine"):
            network(name, model="B200")
    # What joins the CPUs is a guess, too, over which only a GPU without NVLink is reached
    topology = network("b200-one-gpu-off-nvlink.txt", model="B200")
    assert topology.is_guessed()
    bound = bound_report(topology, ALLREDUCE, None).bound
    assert (1 / bound.value, "under" in bound.to_json(topology)) == (63, False)


def test_a_guess_survives_files_and_functions(tmp_path):
    path = tmp_path / "a.json"
    topology = network("one-off.txt")
    save_topology(topology, path)
    again, slower = load_topology(f"file:{path}"), load_topology(f"scaled(file:{path};link=0.0-nvswitch:0;factor=1/2)")
    assert (again.id, again.assumptions) == (topology.id, topology.assumptions)
    assert json.loads(path.read_text())["assumptions"][0]["source"] == "guess"
    assert both(again) == both(topology)
    assert slower.is_guessed()
    assert slower.expected is not None
    # As clouds ship with NCCL_TOPO_FILE: the GPUs have NVLinks that it does not name
    gpus = [pci(f"0000:10:{slot}.0", kind="0x030200", speed="8 GT/s") for slot in ("1c", "1d")]
    (tmp_path / "a.xml").write_bytes(system(cpu(0, pci("ffff:ff:01.0", *gpus, speed="8 GT/s"))))
    placed = read_network(str(tmp_path / "a.xml"), MachineOptions()).topology
    assert "under" in bound_report(placed, ALLREDUCE, None).bound.to_json(placed)
    assert any(fact.source == "guess" and fact.what == "links between GPUs" for fact in placed.assumptions)


def test_what_several_boxes_need_beyond_the_file_is_a_guess():
    for name, options, is_guess in (
        ("b200-good.txt", {"model": "B200", "boxes": 2}, True),  # no word about the speed of NICs
        ("b200-good.txt", {"model": "B200", "boxes": 2, "nic_gbps": "400"}, False),
        ("gb200-2trays.xml", {}, False),
        ("gb200-2trays.xml", {"boxes": 2}, True),  # four trays in one NVLink domain
        ("gb200-2trays.xml", {"boxes": 2, "nvlink_boxes": 2}, False),
    ):
        topology = network(name, **options)
        certificate = bound_report(topology, ALLREDUCE, None).bound.to_json(topology)
        assert ("under" in certificate) is is_guess, (name, options)


def test_switches_trays_and_scripts(tmp_path):
    fabric = network("ib71.txt")
    assert fabric.compute_count == 4
    assert float(algbw(fabric)) == pytest.approx(200 / 3)
    assert float(algbw(fabric, "allgather")) == pytest.approx(400 / 3)
    assert [ability.reduce for ability in fabric.abilities.values()] == [True]
    one_domain = network("gb200-2trays.xml", boxes=2)
    assert [name for name in one_domain.node_ids if name.startswith("nvswitch")] == ["nvswitch:0"]
    apart = network("gb200-2trays.xml", boxes=2, nvlink_boxes=1)
    assert "net:0" in apart.node_ids
    assert algbw(apart) < algbw(one_domain)
    texts = [(DATA / name).read_text() for name in ("gb200-2trays.xml", "graph1667.xml")]
    (tmp_path / "setup.sh").write_text("\n".join(f"cat > {len(text)}.xml <<EOF\n{text}\nEOF" for text in texts))
    assert load_topology(f"file:{tmp_path / 'setup.sh'}").compute_count == 8


def test_texts_about_several_machines_and_other_files_are_named_for_what_they_are(tmp_path):
    with pytest.raises(InvalidInput, match=r"topo -p2p.*save what `nvidia-smi topo -m` prints"):
        network("p2p-ns.txt")
    with pytest.raises(InvalidInput, match=r"a graph file of NCCL.*NCCL_TOPO_DUMP_FILE"):
        network("graph1667.xml")

    def of_host(host: str, name: str) -> list[str]:
        return [f"{host}: {line}\n" for line in (DATA / name).read_text().splitlines()]

    path, one = tmp_path / "hosts.txt", of_host("n1", "b200-collect-env.txt")
    path.write_text("".join(a + b for a, b in zip(one, of_host("n2", "b200-collect-env.txt"), strict=True)))
    assert algbw(load_topology(f"file:{path}")) == algbw(load_topology(f"file:{DATA / 'b200-collect-env.txt'}"))
    read = {name: (DATA / name).read_text() for name in ("b200-good.txt", "one-off.txt", "spark102.xml", "mig1716.xml")}
    others = {
        "kinds of machines: 2 hosts that differ": "".join([*one, *of_host("n2", "a100x4-nv4.txt")]),
        "describes several kinds of machines: 2 matrices": read["b200-good.txt"] + read["one-off.txt"],
        "exactly one topology dump: 2 that differ": read["spark102.xml"] + read["mig1716.xml"],
        "a section for each.*none of H-b88303ffff7f61d5": (DATA / "ib71.txt").read_text().rpartition("Ca")[0],
        "dump is not complete: an XML element without its end": read["mig1716.xml"][:-30],
    }
    for words, text in others.items():
        path.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            load_topology(f"file:{path}")


LABELS = (
    "node17: ", "> ", "        ", "[1,0]<stdout>:", "2025-03-01T10:00:00.123Z ", "[2025-03-01 10:00:00] ", "\x1b[0m",
)  # fmt: skip


NAMES = ("b200-collect-env.txt", "mi250x-rocm-smi.txt", "gb200-2trays.xml", "ib71.txt")


@pytest.mark.parametrize(
    ("label", "name"), [(label, NAMES[number % 4]) for number, label in enumerate(LABELS)] + [("node17: ", NAMES[2])]
)
def test_labels_of_lines_are_no_part_of_them(tmp_path, label, name):
    path, plain = tmp_path / "log.txt", load_topology(f"file:{DATA / name}")
    text = "".join(f"{label}{line}\r\n" for line in (DATA / name).read_text().splitlines())
    path.write_text(f"some words\n```\n{text}```\nmore words\n")
    read = load_topology(f"file:{path}")
    assert (read.compute_count, algbw(read)) == (plain.compute_count, algbw(plain))


def rocm_smi(count: int, **cells: Any) -> str:
    """Return the tables of rocm-smi; a cell is a text, or a function of two GPUs."""
    titles = {"weight": "Weight", "hops": "Hops", "type": "Link Type", "bandwidth": "Bandwidth"}
    lines = []
    for name, cell in cells.items():
        lines += [f"=== {titles[name]} between two GPUs ===", "   ".join(f"GPU{gpu}" for gpu in range(count))]
        for a in range(count):
            row = ("0" if a == b else cell if isinstance(cell, str) else str(cell(a, b)) for b in range(count))
            lines.append(f"GPU{a}  {'  '.join(row)}")
    return "\n".join(lines)


@pytest.mark.parametrize("spec", ["mi250:1", "mi250half:1"])
def test_dies_of_mi250_are_the_built_in_machine_in_any_order(tmp_path, spec):
    known = load_topology(spec)
    count, path = known.compute_count, tmp_path / "a.txt"
    for order, as_rates in product((1, 3), (True, False)):
        links = {(src * order % count, dst * order % count): rate for (src, dst), rate in _totals(known).items()}
        cells = {"weight": lambda a, b, links=links: 15 if (a, b) in links else 30, "hops": "1", "type": "XGMI"}
        if as_rates:
            most = {pair: f"50000-{int(rate) * 1000}" for pair, rate in links.items()}
            cells = {"type": "XGMI", "bandwidth": lambda a, b, most=most: most.get((a, b), "0-0")}
        path.write_text("GPU 0: AMD Instinct MI250X\n" + rocm_smi(count, **cells))
        found = read_network(str(path), MachineOptions()).topology
        assert _totals(found) == links
        assert found.is_guessed() == (order > 1 and not as_rates)
    if spec == "mi250half:1":  # and as the tools of real ones print it
        for name in ("mi250x-rocm-smi.txt", "mi250x-amd-smi.txt"):
            assert _totals(network(name)) == _totals(known)


def test_partitions_share_the_links_of_their_gpu_and_links_of_an_unknown_type_are_not_pci(tmp_path):
    """In the mode CPX, rocm-smi shows eight GPUs for each MI300X, at the weight 13 from each other."""
    tables = rocm_smi(16, weight=lambda a, b: 13 if a // 8 == b // 8 else 15, hops="1", type="XGMI")
    path, text = tmp_path / "a.txt", "GPU 0: AMD Instinct MI300X\n" + tables
    path.write_text(text)
    assert algbw(read_network(str(path), MachineOptions()).topology) == 64
    refused = {"at most 8 xGMI links, got 15 of GPU 0": text.replace("  13", "  15")}
    refused |= {f"links of type {kind}": text.replace("XGMI", kind) for kind in ("N/A", "UNKNOWN")}
    for words, text in refused.items():
        path.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_network(str(path), MachineOptions())


@pytest.mark.parametrize("devices", [[*range(8)], [0, 2, 3, 7]])
def test_every_form_of_rocm_smi_is_the_same_machine(tmp_path, devices):
    path, tables = tmp_path / "topo", (("Weight", "15"), ("Hops", "1"), ("Link type", "XGMI"))
    pairs = {
        f"(Topology) {name} between DRM devices {a} and {b}": value
        for name, value in tables
        for a, b in combinations(devices, 2)
    }
    cards = {f"card{device}": {"(Topology) Numa Node": "0"} for device in devices}
    wide = [["device", "(Topology) Numa Node", *pairs], *([card, "0", *["N/A"] * len(pairs)] for card in cards)]
    texts = [
        "WARNING: a device is asleep\n" + json.dumps({**cards, "system": pairs}, indent=2),
        "name, value\n" + "".join(f'"{key}", "{value}"\n' for key, value in pairs.items()),
        "".join(",".join(row) + "\n" for row in [*wide, ["system", "N/A", *pairs.values()]]),
    ]
    kinds = {"weight": 15, "hops": 1, "link_type": "XGMI", "numa_bandwidth": "N/A", "atomics": '"64,32"'}
    head = ",".join(["gpu", *(f"{kind}_gpu_{device}" for kind in kinds for device in devices)])
    rows = [",".join(map(str, [device, *(cell for cell in kinds.values() for _ in devices)])) for device in devices]
    texts.append("\r\n".join([head, *rows]))  # of amd-smi
    for text in texts:
        path.write_text(text)
        read = read_network(str(path), MachineOptions(model="MI300X")).topology
        assert (read.compute_count, algbw(read)) == (len(devices), 64 * len(devices) / Fraction(2))


def test_newer_json_of_amd_smi_says_which_links_are_off(tmp_path):
    """The manual's example has a comma behind the last member; a list that breaks off is refused."""

    def link(gpu: int, other: int) -> dict[str, Any]:
        status = "DISABLED" if {gpu, other} == {0, 3} else "ENABLED"
        facts = {"weight": 15, "link_type": "SELF" if other == gpu else "XGMI", "num_hops": 1, "link_status": status}
        return {"gpu": other, **facts, "bandwidth": "50000-100000"}

    lists = {gpu: [link(gpu, other) for other in range(4)] for gpu in range(4)}
    text = json.dumps([{"gpu": gpu, "bdf": f"0000:0{gpu}:00.0", "links": links} for gpu, links in lists.items()])
    path = tmp_path / "amd.json"
    path.write_text(text.replace('"50000-100000"', '"50000-100000",'))
    read = read_network(str(path), MachineOptions(model="MI300X")).topology
    joined = {(link.src, link.dst) for link in read.links if max(link.src, link.dst) < 4}
    assert read.compute_count == 4
    assert joined == {(a, b) for a in range(4) for b in range(4) if a != b and {a, b} != {0, 3}}
    path.write_text(text[:200])
    with pytest.raises(InvalidInput, match="breaks off"):
        read_network(str(path), MachineOptions())


def test_relative_files_of_a_spec_are_found_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "ring.json").write_text(json.dumps(to_json(load_topology("ring:4"))))
    for spec in ("file:{}", "product(file:{};ring:3)"):
        monkeypatch.chdir(tmp_path)
        relative = spec.format("ring.json")
        absolute, network = absolute_spec(relative), load_topology(relative)
        assert absolute == spec.format(tmp_path / "ring.json")
        monkeypatch.chdir("/")
        assert load_topology(absolute).id == network.id
        assert absolute_spec(absolute) == absolute
    assert absolute_spec("degree( ring:4 ; 2)") == "degree( ring:4 ; 2)"
    with pytest.raises(InvalidInput):
        absolute_spec("file:")
