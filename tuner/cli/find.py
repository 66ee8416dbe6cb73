"""`chorale find`: the best topologies of a number of nodes and a degree."""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, cast, get_args

import typer

from chorale.runners.api.units import parse_size
from chorale.synth import InvalidInput, parse_topology
from chorale.synth.executor.base import Progress
from chorale.synth.finder.base_candidates import BASE_SETS, BaseSet
from chorale.synth.finder.candidate import Workload
from chorale.synth.finder.confirmation import Goal
from chorale.synth.finder.find import MAX_NODES, FinderQuery, find_all
from chorale.synth.finder.find import find as find_topologies
from chorale.synth.identity import parse_rational
from chorale.synth.names import name_among
from chorale.tuner.cli.options import ExecutorName, PlotFile, Workers, file_to_write
from chorale.tuner.cli.output import notice, stage_bars
from chorale.tuner.config.building import open_executor
from chorale.tuner.costs.pricing import load_calibration
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.reports.finder import Wiring, find_document, find_table, search_bases, sizes_document
from chorale.tuner.reports.tables import Result, Stopwatch, peak_memory_bytes, seconds_text


def find(
    nodes: Annotated[str, typer.Option("--nodes", "-n")],
    degree: Annotated[int, typer.Option("--degree", "-d")],
    bidirectional: bool = False,
    bases: Annotated[str, typer.Option(help=f"Bases to expand: {' or '.join(BASE_SETS)}.")] = "all",
    seeds: Annotated[int, typer.Option("--search", min=0, max=10**6)] = 16,
    record: Annotated[Path | None, typer.Option("--search-record", metavar="FILE", callback=file_to_write)] = None,
    collective: str = "allreduce",
    keep_cables: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    moves: Annotated[int | None, typer.Option(min=0)] = None,
    cables: Annotated[Path | None, typer.Option(metavar="FILE", callback=file_to_write)] = None,
    panel_ports: Annotated[int | None, typer.Option(min=2)] = None,
    alpha_us: str | None = None,
    size: str | None = None,
    bandwidth_gbps: str | None = None,
    calibration: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    plot: PlotFile = None,
) -> Result:
    """Find topologies that no other beats in steps and bandwidth, or the best for a workload.

    `chorale synth METHOD SPEC --collective allgather` reproduces every row; an allreduce takes twice that. A range of
    nodes takes costs that are known by theorems as they are, makes no schedules and searches for no bases.

    Args:
        nodes: Number of nodes, or FIRST:LAST for all of these.
        degree: Links out of and into every node.
        bidirectional: Every link must have its reverse.
        seeds: Seeds of the search for Cayley digraphs; 0: no search.
        record: JSON file that keeps the search, to go on later.
        collective: Rank by allreduce (steps and bandwidth), alltoall (its rate), or both.
        keep_cables: CSV of the cables that lie (from,to): nodes are placed to keep most.
        moves: With --keep-cables: at most so many cables are laid anew.
        cables: Write the cables of the best network as .csv, or draw them as .png, .svg or .pdf.
        panel_ports: With --cables: ports of a patch panel, two for a cable.
        alpha_us: Workload: microseconds for a step.
        size: Workload: bytes of the allreduce, such as 1M.
        bandwidth_gbps: Workload: Gbit/s of a whole node.
        calibration: Workload: JSON of `run --calibrate --json`, instead of the other two.

    Example: chorale find --nodes 64 --degree 4 --alpha-us 10 --size 1M --bandwidth-gbps 100
    """
    base_set: BaseSet = "paper" if name_among("set of bases", bases, BASE_SETS) == "paper" else "all"
    queries = [
        FinderQuery(count, degree, bidirectional, base_set) for count in _node_counts(nodes, degree, bidirectional)
    ]
    workload = _workload(alpha_us, size, bandwidth_gbps, calibration, degree)
    require_plot_format(plot)
    if cables is not None and cables.suffix != ".csv":
        require_plot_format(cables)
    goal = cast(Goal, name_among("collective to rank by", collective, get_args(Goal)))
    one_size = {"--plot": plot, "--collective": goal != "allreduce", "--keep-cables": keep_cables, "--cables": cables}
    for option, value in one_size.items():
        if value and ":" in nodes:
            raise InvalidInput(f"{option} takes one number of nodes", f"--nodes {nodes}", "write --nodes 64")
    wiring = Wiring.of(queries[0], keep_cables, moves, panel_ports)
    stages = Stopwatch()
    with open_executor(executor, workers) as running, stage_bars() as begin_bar, ExitStack() as current:

        def stage(name: str) -> Progress | None:
            current.close()
            current.enter_context(stages.stage(name))
            return begin_bar(name)

        if ":" in nodes:
            document = sizes_document(find_all(queries, running, stage), workload)
        else:
            searched = search_bases(queries[0], seeds, running, stage, record) if base_set == "all" else {}
            allowed = None if wiring.most is None else wiring.allows
            findings = find_topologies(queries[0], running, stage, searched, goal=goal, allowed=allowed)
            if not findings.frontier:
                raise wiring.too_few_moves()
            document = find_document(findings, workload, wiring)
    if plot is not None:
        from chorale.tuner.plots.charts import plot_frontier  # noqa: PLC0415 - matplotlib is optional

        plot_frontier(findings, plot)
    seconds = stages.report()
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    notice(f"took {seconds_text(document['seconds'])}")
    if ":" in nodes:
        return Result(document, find_table(document))
    row = document.get("best") or document["frontier"][0]
    if cables is not None:
        if cables.suffix == ".csv":
            write_file(cables, wiring.csv(row["spec"]))
        else:
            from chorale.tuner.plots.network_plots import plot_cabling  # noqa: PLC0415 - matplotlib is optional

            plot_cabling(parse_topology(row["spec"]), wiring.cabling(row["spec"]), cables)
    step = f"chorale synth {row['method']} {quote(row['spec'])} --collective allreduce -o schedule.parquet"
    return Result(document, find_table(document), next_step=step)


def _node_counts(text: str, degree: int, bidirectional: bool) -> list[int]:
    """Read N or FIRST:LAST; of a range, keep the sizes that exist."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and len(first) < 10 and (not colon or (last.isdecimal() and len(last) < 10))):
        raise InvalidInput("--nodes must be a number or a range", text, "write 64 or 5:2000")
    if not colon:
        return [int(first)]
    if int(last) > MAX_NODES:
        raise InvalidInput(f"a range of nodes must end at {MAX_NODES} or before", text, "choose a smaller last number")
    possible = range(max(int(first), degree + 1, 2), int(last) + 1)
    counts = [count for count in possible if not bidirectional or (count * degree % 2 == 0 and degree > 1)]
    if not counts:
        value = f"{text} with degree {degree}"
        raise InvalidInput(
            "no network of this degree has a size in the range: {}", value, "choose more nodes than the degree"
        )
    return counts


def _workload(
    alpha_us: str | None, size: str | None, bandwidth_gbps: str | None, calibration: str | None, degree: int
) -> Workload | None:
    """Return the workload; of a calibration, with its alpha and `degree` times the bandwidth of a link."""
    given = {"--alpha-us": alpha_us, "--size": size, "--bandwidth-gbps": bandwidth_gbps}
    named = [name for name, value in given.items() if value is not None]
    if calibration is None:
        if not named:
            return None
        if alpha_us is None or size is None or bandwidth_gbps is None:
            rule = "a workload must have --alpha-us, --size and --bandwidth-gbps"
            missing = ", ".join(name for name in given if name not in named)
            raise InvalidInput(rule, f"no {missing}", "give all three or none")
        alpha, bandwidth = parse_rational(alpha_us, "--alpha-us"), parse_rational(bandwidth_gbps, "--bandwidth-gbps")
        return Workload(alpha, parse_size(size), bandwidth)
    if size is None or named != ["--size"]:
        rule = "a workload with --calibration has --size and neither --alpha-us nor --bandwidth-gbps"
        raise InvalidInput(rule, ", ".join(named) or "none of them", "give --calibration and --size")
    fitted = load_calibration(calibration)
    if fitted.bandwidth_unit != "link":
        rule = "a calibration for topologies to be found must come from a network of equal links"
        raise InvalidInput(rule, f"one in {fitted.bandwidth_unit}", "calibrate on a topology such as torus:4x4")
    alpha = parse_rational(fitted.alpha_s, "the fitted alpha") * 10**6
    link_gbps = parse_rational(fitted.unit_bytes_per_s, "the fitted rate") * 8 / 10**9
    return Workload(alpha, parse_size(size), degree * link_gbps)
