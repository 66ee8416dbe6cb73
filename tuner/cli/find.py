"""`chorale find`: the best topologies for a number of nodes and a degree."""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, cast, get_args

import typer

from chorale.runners.api.units import parse_size
from chorale.synth import InvalidInput, parse_topology
from chorale.synth.errors import name_among
from chorale.synth.executor.base import Progress
from chorale.synth.finder.candidate import Workload
from chorale.synth.finder.cayley_search import search_bases
from chorale.synth.finder.find import MAX_NODES, FinderQuery, Goal, find_all
from chorale.synth.finder.find import find as find_topologies
from chorale.synth.identity import parse_rational
from chorale.tuner import plots
from chorale.tuner.cli.options import ExecutorName, PlotFile, Workers, file_to_write
from chorale.tuner.cli.output import notice, stage_bars
from chorale.tuner.config.building import open_executor
from chorale.tuner.files.home import FORMATS, write_file
from chorale.tuner.reports.finder import Wiring, find_document, find_table, sizes_document
from chorale.tuner.reports.tables import Result, Stopwatch, seconds_text


def find(
    nodes: Annotated[str, typer.Option("--nodes", "-n")],
    degree: Annotated[int, typer.Option("--degree", "-d")],
    bidirectional: bool = False,
    seeds: Annotated[int, typer.Option("--search", min=0, max=10**6)] = 16,
    collective: str = "allreduce",
    keep_cables: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    moves: Annotated[int | None, typer.Option(min=0)] = None,
    cables: Annotated[Path | None, typer.Option(metavar="FILE", callback=file_to_write)] = None,
    panel_ports: Annotated[int | None, typer.Option(min=2)] = None,
    alpha_us: str | None = None,
    size: str | None = None,
    bandwidth_gbps: str | None = None,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    plot: PlotFile = None,
) -> Result:
    """Find topologies with the best trade-offs of steps and bandwidth, or the best for a workload.

    `chorale synth METHOD SPEC --collective allgather` reproduces every row; an allreduce takes twice as long. For a
    range of nodes, costs come from theorems: no schedules are built, and no Cayley digraphs are searched.

    Args:
        nodes: Number of nodes, or a range FIRST:LAST.
        degree: Links out of and into every node.
        bidirectional: Require the reverse of every link.
        seeds: Number of random searches for Cayley digraphs, each with another seed; 0: no search.
        collective: Rank by allreduce (steps and bandwidth), alltoall (rate), or both.
        keep_cables: CSV file of existing cables (from,to); nodes are placed so that most of them stay.
        moves: With --keep-cables: largest number of new cables.
        cables: Write the cables of the best network to a .csv file, or draw them as .png, .svg or .pdf.
        panel_ports: With --cables FILE.csv: ports of a patch panel; each cable takes two.
        alpha_us: Workload: latency of a step in microseconds.
        size: Workload: buffer size of the allreduce, such as 1M.
        bandwidth_gbps: Workload: total Gbit/s of a node over all its links.

    Example: chorale find --nodes 64 --degree 4 --alpha-us 10 --size 1M --bandwidth-gbps 100
    """
    queries = [FinderQuery(count, degree, bidirectional) for count in _node_counts(nodes, degree, bidirectional)]
    workload = _workload(alpha_us, size, bandwidth_gbps)
    if cables is not None and cables.suffix.lower() not in (".csv", *FORMATS):
        raise InvalidInput("cannot save cables as {}", cables.name, "use a name that ends in .csv, .png, .svg or .pdf")
    is_list = cables is not None and cables.suffix.lower() == ".csv"
    if panel_ports is not None and not is_list:
        raise InvalidInput("{} needs a list of cables", f"--panel-ports {panel_ports}", "add --cables cables.csv")
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
            searched = search_bases(queries[0], seeds, running, stage)
            allowed = None if wiring.most is None else wiring.allows
            findings = find_topologies(queries[0], running, stage, searched, goal=goal, allowed=allowed)
            if not findings.frontier:
                raise wiring.too_few_moves()
            document = find_document(findings, workload, wiring)
    notes = []
    if plot is not None:
        plots.plot_frontier(findings, plot)
        notes.append(f"{plot}: picture of the Pareto frontier")
    document |= stages.closing()
    notice(f"took {seconds_text(document['seconds'])}")
    if ":" in nodes:
        return Result(document, find_table(document))
    row = document.get("best") or document["frontier"][0]
    if keep_cables is not None:
        notes.append(f"hosts of ranks 0, 1, … of {row['spec']}: {', '.join(row['hosts'])}")
    if cables is not None:
        if is_list:
            write_file(cables, wiring.csv(row["spec"]))
        else:
            plots.plot_cabling(parse_topology(row["spec"]), wiring.cabling(row["spec"]), cables)
        notes.append(f"{cables}: {wiring.summary(row['spec'])}")
    step = f"chorale synth {row['method']} {quote(row['spec'])} --collective allreduce -o schedule.parquet"
    if goal == "alltoall":
        step = f"chorale alltoall {quote(row['spec'])}"
    return Result(document, find_table(document), *notes, next_step=step)


def _node_counts(text: str, degree: int, bidirectional: bool) -> list[int]:
    """Parse N or FIRST:LAST. Return the numbers of nodes; in a range, only those for which a network exists."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and len(first) < 10 and (not colon or (last.isdecimal() and len(last) < 10))):
        raise InvalidInput("--nodes must be a number or a range", text, "write for example 64 or 5:2000")
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


def _workload(alpha_us: str | None, size: str | None, bandwidth_gbps: str | None) -> Workload | None:
    """Return the workload by which networks are ranked, or None if no option describes it."""
    given = {"--alpha-us": alpha_us, "--size": size, "--bandwidth-gbps": bandwidth_gbps}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if alpha_us is None or size is None or bandwidth_gbps is None:
        rule = "a workload must have --alpha-us, --size and --bandwidth-gbps"
        raise InvalidInput(rule, f"no {', '.join(missing)}", "give all three or none")
    alpha, bandwidth = parse_rational(alpha_us, "--alpha-us"), parse_rational(bandwidth_gbps, "--bandwidth-gbps")
    return Workload(alpha, parse_size(size), bandwidth)
