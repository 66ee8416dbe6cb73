"""A campaign on four ranks that share one GPU: `python -m tests.live.nccl.gpu_cases` prints what was applied, as JSON.

    python -m tests.live.nccl.gpu_cases [--library PATH] [--as-hosts] [--memory host]

Settings of each collective are tried with their log, and every element is checked; then programs, calls with their own
configuration, CUDA graphs and calls by PyTorch; then `chorale tune` runs from the example to a
tuner file, and a job with the plug-in says what its rows decided. NCCL before 2.30
refuses ranks that share a GPU: --as-hosts lets each be a host of its own. Times say nothing of links. Ten minutes at
most. With --memory host it runs on the library of tests/stand_ins/nccl.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chorale.job.nccl.plugin import applied_rows, tuner_plugin
from chorale.runners.api.base import Measurement, RunRequest
from chorale.runners.nccl.config import NcclConfig
from chorale.runners.nccl.parameters import ALGORITHMS
from chorale.runners.nccl.runner import NcclRunner
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.cli.main import main as chorale
from tests.conformance.example_programs import ring_allreduce
from tests.live.nccl.shared_job import run_job
from tests.stand_ins.nccl import stand_in_library

RANKS, SIZES = 4, (4096, 1 << 20)
EXAMPLE = Path(__file__).parents[3] / "examples" / "stock-nccl.yaml"
NO_CARD = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def cases() -> Iterator[LibrarySettings]:
    """Yield settings: each algorithm with its protocols, and each other parameter once."""
    for algorithm in ALGORITHMS.values():
        for protocol in algorithm.protocols:
            yield LibrarySettings(algorithm.name, protocol)
    yield LibrarySettings("ring", "Simple", ctas=2)
    yield LibrarySettings("ring", "Simple", chunk_bytes=2**16)
    yield LibrarySettings("ring", "Simple", buffer_bytes=2**20)
    yield LibrarySettings("ring", "Simple", threads=128)
    yield LibrarySettings("ring", "Simple", cta_policy="efficiency")
    yield LibrarySettings("symmetric")


def tried(runner: NcclRunner, call: LibraryCall | Program) -> Mapping[str, Any]:
    """Return what came of a setting or a program, beside the library's own choice."""
    request = RunRequest(parse_topology(f"complete:{RANKS}"), {"tried": call}, SIZES, 2, 0, 120.0, library=("nccl",))
    outcome = runner.submit(request)
    said: dict[str, Any] = {"collective": call.collective.name.value}
    said["what"] = str(call.settings) if isinstance(call, LibraryCall) else "a ring of Chorale"
    if not isinstance(outcome, Measurement):
        return said | {"kind": outcome.kind, "message": outcome.message}
    times = {name: [round(size.median_s * 1e6, 1) for size in sizes] for name, sizes in outcome.results.items()}
    return said | {"kind": "applied", "times_us": times, "library": outcome.environment["library"]}


def ways(options: NcclConfig) -> Iterator[Mapping[str, Any]]:
    """Yield what came of a program, and of a setting in each other way to make calls."""
    allreduce = Collective(CollectiveName.ALLREDUCE)
    settings = LibraryCall(allreduce, RANKS, True, LibrarySettings("ring", "LL", ctas=2))
    for change in (
        {},
        {"per_call": True},
        {"cuda_graph": True},
        {"torch": "nccl"},
        {"torch": "nccl", "cuda_graph": True},
    ):
        with NcclRunner(options.model_copy(update=change)) as runner:
            for call in (settings, ring_allreduce(range(RANKS))):
                yield {"way": change} | tried(runner, call)


def campaign(folder: Path, options: NcclConfig, runtime: str | None) -> Mapping[str, Any]:
    """Tune the example, export its table, and run a job with it; return what rows decided."""
    os.environ["CHORALE_HOME"] = str(folder / "home")
    settings = {
        "topology": f"complete:{RANKS}", "sizes": list(SIZES), "runner.library": options.library,
        "runner.memory": options.memory, "runner.gpus_per_node": 1, "runner.iterations": options.iterations,
        "runner.variables": dict(options.variables), "search.methods": ["nccl:ring", "nccl:tree", "ring"],
        "search.ctas": [None, 2], "search.chunk_bytes": [None], "budget.trials": 12, "budget.minutes": 4,
        "final.minutes": 2, "runner.needs": {"gpus": 0},
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    for command in (
        ["tune", str(EXAMPLE), *words],
        ["table", "write", "--campaign", "stock-nccl", "-o", str(folder / "job.table")],
        ["table", "export", str(folder / "job.table"), "--for", "nccl", "-o", str(folder / "tuner.csv")],
    ):
        try:
            chorale(command)
        except SystemExit as end:
            if end.code:
                return {"command": command[:2], "exit": end.code}
    calls = [("allreduce", size) for size in SIZES for _ in range(3)]
    report = run_job(folder, options.library, runtime, folder / "tuner.csv", calls, dict(options.variables))
    return {"table": (folder / "tuner.csv").read_text(), "applied": applied_rows(report)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libnccl.so.2; by default that of Python's packages")
    parser.add_argument("--runtime", help="libcudart.so")
    parser.add_argument("--as-hosts", action="store_true", help="each rank is a host of its own")
    parser.add_argument("--memory", choices=("gpu", "host"), default="gpu")
    given = parser.parse_args()
    library = given.library or (str(stand_in_library()) if given.memory == "host" else "nccl")
    sharing = {"NCCL_HOSTID": "host{rank}"} if given.as_hosts else {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    options = NcclConfig(
        gpus_per_node=1, library=library, runtime=given.runtime, memory=given.memory, iterations=5,
        variables=NO_CARD | sharing,
    )  # fmt: skip
    deadline = time.monotonic() + 180
    tuner_plugin()
    with NcclRunner(options) as runner:
        for settings in cases():
            names = ALGORITHMS[settings.algorithm].collectives if settings.algorithm in ALGORITHMS else {"allreduce"}
            for name in sorted(names):
                if time.monotonic() < deadline:
                    say(tried(runner, LibraryCall(Collective(CollectiveName(name)), RANKS, True, settings)))
    for document in ways(options) if given.memory == "gpu" else ():
        say(document)
    with tempfile.TemporaryDirectory() as folder:
        runtime = library if given.memory == "host" else given.runtime  # the stand-in is both
        say(campaign(Path(folder), options, runtime))


def say(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
