"""`chorale auto` and `chorale demo`: the fabric by the tools that are there, the roofline, the next command."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chorale.runners.measurement.driver import link_limit
from chorale.synth.build.build import LoweredProgram, build_program
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.auto.roofline import (
    EMULATED,
    MeasuredContest,
    contest as real_contest,
    discover,
    program_rows,
    runnable_programs,
    synthesized_allreduce,
)
from chorale.tuner.cli import auto as demo_command
from chorale.tuner.files.schedule_files import load_topology
from tests.command import chorale

DATA = Path(__file__).parents[3] / "data" / "fabric_tools"


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, no data folder, and a folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("NCCL_TOPO_DUMP_FILE", raising=False)
    return folder


def tool(folder: Path, name: str, output: str, code: int = 0) -> None:
    """Make a tool that prints `output` for any arguments, and the name of a GPU where that is asked for."""
    (folder / f"{name}.txt").write_text(output)
    script = '#!/bin/sh\ncase "$1" in --query*) echo "NVIDIA H100"; exit 0;; esac\n'
    script += f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {folder / name}.txt\nexit {code}\n"
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def test_each_tool_is_asked(tools, tmp_path, monkeypatch):
    tool(tools, "nvidia-smi", "no devices were found", 6)
    tool(tools, "rocm-smi", "GPU0\nGPU0 0\n")
    fabric = discover(None, None)
    assert (fabric.topology.spec, fabric.is_emulated) == (EMULATED, True)
    assert [line.split(":")[0] for line in fabric.skipped] == ["nvidia-smi", "rocm-smi"]
    tool(tools, "ibnetdiscover", (DATA / "ibnetdiscover-voltaire.txt").read_text())
    assert (discover(None, None).topology.compute_count, discover(None, None).has_accelerators) == (4, False)
    tool(tools, "rocm-smi", (DATA / "rocm-smi-topo-xgmi.txt").read_text())
    assert discover(None, None).source == "rocm-smi --showtopo --showproductname"
    tool(tools, "nvidia-smi", (DATA / "nvidia-smi-topo-h100.txt").read_text())
    fabric = discover(None, None)
    assert (fabric.topology.compute_count, fabric.topology.switch_count, fabric.has_accelerators) == (8, 1, True)
    saved = tmp_path / "topo.txt"
    saved.write_text((DATA / "nvidia-smi-topo-h100.txt").read_text())
    monkeypatch.setenv("NCCL_TOPO_DUMP_FILE", str(saved))
    assert discover(None, None).source == f"NCCL's dump {saved}"
    assert discover("ring:4", None).topology.spec == "ring:4"


def test_a_fabric_of_gpus_is_proven_and_not_measured(capsys):
    document = chorale(capsys, "auto", "a100:2", "--json").document
    certificate = document["bound"].pop("certificate")
    assert document["bound"] == {"time_per_byte": "3/520", "algbw": pytest.approx(520 / 3)}
    assert certificate["time_per_byte"] == "3/520"
    assert document["best"]["gap"] == "0"
    assert document["library"] == {
        "library": "NCCL", "version": "2.28.3", "algorithm": "ring", "channels": 16, "method": None,
        "algbw": pytest.approx(102.4), "of_bound": pytest.approx(102.4 * 3 / 520), "bound": "ranks",
    }  # fmt: skip
    assert [each["algorithm"] for each in document["baselines"]] == ["ring", "tree"]
    assert document["results"] == []
    shown = chorale(capsys, "auto", "a100:2").stdout
    assert "proven bound" in shown
    assert "% of the bound" in shown
    fastest = document["programs"][0]
    assert fastest["refused"] is None
    assert fastest["predicted"][-1]["size_bytes"] == 2**28
    k = "" if fastest["k"] is None else f" --k {fastest['k']}"
    assert f"next: chorale synth {fastest['method']} a100:2 --collective allreduce{k} -o auto.parquet" in shown
    assert "next: chorale judge all_reduce_perf.log --topology a100:2" in shown
    assert "next: chorale tune examples/gpu-cluster-msccl.yaml --set topology=a100:2 --dry-run" in shown
    assert len(shown.splitlines()) <= 28


def test_what_no_target_can_run_is_not_advised(monkeypatch):
    network = load_topology("a100:1")
    best = synthesized_allreduce(network, "auto")

    def limited(verified: VerifiedSchedule, options: LoweringOptions) -> LoweredProgram:
        if verified is best:
            raise InvalidInput("steps must be at most 64", "67", "take fewer trees")
        return build_program(verified, options)

    monkeypatch.setattr("chorale.tuner.auto.roofline.build_program", limited)
    programs = runnable_programs(network, best, (2**16,), math.inf)
    assert (programs[0]["refused"], programs[-1]["refused"]) == (None, "steps must be at most 64, got 67")
    assert list(program_rows(programs, 1.0))[-1][1] == "msccl-xml refuses it: steps must be at most 64, got 67"


def test_the_network_of_a_dump_is_kept_and_gpus_in_it_get_their_hints(tmp_path, capsys):
    saved = DATA / "ibnetdiscover-voltaire.txt"
    document = chorale(capsys, "auto", "--dump", saved, "-o", "fabric.json", "--json").document
    assert from_bytes((tmp_path / "fabric.json").read_bytes(), "file:a").id == document["fabric"]["id"]
    assert chorale(capsys, "auto", "--dump", "absent.xml").code == 2
    imported = ("topology", "import", DATA / "nvidia-smi-topo-h100.txt", "--model", "H100", "--boxes", "2")
    assert chorale(capsys, *imported, "--nic-gbps", "400", "-o", tmp_path / "cluster.json").code == 0
    steps = chorale(capsys, "auto", "file:cluster.json", "--budget", "1", "--json").document["next"]
    assert steps[0].startswith("chorale judge all_reduce_perf.log --topology file:cluster.json")
    assert steps[1].startswith(
        "chorale tune examples/stock-nccl.yaml --set topology=file:cluster.json --set runner.launcher=srun "
    )


def test_this_machine_is_measured(capsys, monkeypatch):
    def simulated(*arguments: object, **options: object) -> MeasuredContest:
        """What the local runner would measure, by the simulated one; large sizes not once that was seen."""
        schedules, _, sizes, home = arguments
        if is_seen and sizes[0] > 2**16:  # type: ignore[index]
            assert options["options"] == {"link_mbps": 100.0}
            raise CheckFailed("the local runner must measure (timeout)", "the time limit passed", "wait")
        done = real_contest(schedules, "simulated", sizes, home, options={"link_mbps": 100}, repeats=1)  # type: ignore[arg-type]
        topology, environment = schedules["bfb"].schedule.topology, {"link_mbps": 100}  # type: ignore[index]
        measurement = replace(done.measurement, environment=environment)
        return MeasuredContest(measurement, link_limit(topology, ALLREDUCE, environment))

    is_seen = False
    monkeypatch.setattr("chorale.tuner.auto.roofline.contest", simulated)
    document = chorale(capsys, "auto", "--json").document
    assert document["fabric"]["emulated"] is True
    assert document["calibration"] == {"link_mbps": 100.0}
    for row in document["results"]:
        assert row["best"] == "bfb"
        assert row["bound_us"] <= row["times_us"]["bfb"] < row["times_us"]["rabenseifner"]
    is_seen = True
    document = chorale(capsys, "auto", "--json").document
    assert len(document["results"]) == 1
    assert document["not_measured"].startswith("1MiB: the local runner must measure (timeout)")
    assert "of what the links allow" in " ".join(chorale(capsys, "auto").stdout.replace("│", "").split())


def test_the_demo_ends_with_an_answer_and_pictures(tmp_path, capsys, monkeypatch):
    def unable(schedules: object, runner: str, *rest: object, **options: object) -> MeasuredContest:
        if runner == "local":
            raise Unavailable("native code needs a compiler", "none", "install g++")
        return real_contest(schedules, runner, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(demo_command, "contest", unable)
    done = chorale(capsys, "demo", code=0)
    assert "the answer: bfb" in done.stdout
    assert "simulated, since processes could not be measured here" in " ".join(done.stdout.split())
    for name in ("times.svg", "network.svg"):
        assert ElementTree.fromstring((tmp_path / "chorale-demo" / name).read_text()).tag.endswith("svg")
    assert chorale(capsys, "verify", tmp_path / "chorale-demo" / "best.parquet").code == 0
    assert json.loads(chorale(capsys, "demo", "--json").stdout)["best"] == "bfb"
