"""Defines `chorale topology`: list the families, show a network or NCCL's channels, import a network from a file.

Also defines `chorale find`: find the best topologies for a number of nodes and a degree.
"""

from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from chorale.job.files import read_file
from chorale.runners.api.units import parse_size
from chorale.synth import InvalidInput, Topology, parse_topology
from chorale.synth.errors import name_among
from chorale.synth.executor.base import Progress
from chorale.synth.finder.candidate import Workload
from chorale.synth.finder.cayley_search import search_bases
from chorale.synth.finder.find import MAX_NODES, FinderQuery, Goal, find as find_topologies, find_all
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.topology.formats.nccl_dump import graph_file, read_graphs
from chorale.synth.topology.spec import FAMILIES, FILE_FORM, FUNCTIONS
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.tuner import plots
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import ExecutorName, PlotFile, Spec, Workers, file_to_write, notice, stage_bars
from chorale.tuner.config.building import open_executor
from chorale.tuner.files.home import FORMATS, write_file
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.files.schedule_files import load_topology, save_topology
from chorale.tuner.reports.bound import assumption_facts, assumption_rows, bound_label, machine_bounds
from chorale.tuner.reports.finder import Wiring, find_document, find_table, sizes_document
from chorale.tuner.reports.nccl_graph import found_rings, graph_document, graph_table
from chorale.tuner.reports.synthesis import able_text, describe_topology, show_topology
from chorale.tuner.reports.tables import Result, Stopwatch, algbw_text, ruled_table, seconds_text, short_id

_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = CommandLine(help="List the families of networks; show or import a network.", no_args_is_help=True)


@topology_app.command("list")
def list_topologies() -> Result:
    """List all families and functions of topology specs."""
    table = ruled_table()
    for heading in ("syntax", "what", "example"):
        table.add_column(heading, overflow="fold")
    rows = []
    for kind, entries in (("family", FAMILIES.values()), ("file", [FILE_FORM]), ("function", FUNCTIONS.values())):
        for entry in entries:
            facts = {"name": entry.name, "kind": kind, "syntax": entry.syntax}
            rows.append({**facts, "what": entry.summary, "example": entry.example})
            table.add_row(entry.syntax, entry.summary, entry.example)
        table.add_section()
    return Result({"topologies": rows}, table)


@topology_app.command("show")
def show(spec: Spec, plot: PlotFile = None) -> Result:
    """Show the size, degree, diameter and links of a network, and draw it."""
    topology = load_topology(spec)
    if plot is not None:
        plots.plot_topology(topology, plot)
    bounds = machine_bounds(topology)
    step = f"chorale bound {quote(spec)}"
    return Result(show_topology(topology) | bounds, _summary(topology, plot, bounds), next_step=step)


@topology_app.command("graph")
def graph_of_nccl(
    spec: Spec,
    file: Annotated[str | None, typer.Argument(metavar="[GRAPH]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=file_to_write)] = None,
) -> Result:
    """Show NCCL's channels on a machine and their bandwidth, next to the rings that Chorale finds.

    NCCL can load rings from a file, but trees and schedules need programs. With several boxes, only the channels of the
    file are shown.

    Args:
        file: File to which NCCL wrote its channels because NCCL_GRAPH_DUMP_FILE was set.
        output: Write Chorale's rings to this file, for NCCL_GRAPH_FILE.

    Example: chorale topology graph a100:1 -o rings.xml
    """
    topology = load_topology(spec)
    graphs, found = [] if file is None else read_graphs(read_file(file)), None
    # Rings can be found only for one box; rings in the file are shown for any number of boxes
    with suppress(InvalidInput) if output is None and file is not None else nullcontext():
        found = found_rings(topology)
    document = graph_document(topology, graphs, found)
    if output is not None and found is not None:
        write_file(output, graph_file([found]))
        document["output"] = str(output)
    return Result(document, graph_table(document))


@topology_app.command("import")
def import_topology(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=file_to_write, metavar="FILE")] = None,
    options: MachineOptions,
) -> Result:
    """Import a network from a file about a machine or fabric, list the assumptions, and write it as JSON.

    Args:
        file: A dump of NCCL or RCCL, an output of nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology or
            ibnetdiscover, XML of hwloc, GraphML, or JSON.
        output: Write the network to this .json file, to be used as file:FILE.

    Example: chorale topology import dump.xml --boxes 4 --nic-gbps 200 -o cluster.json
    """
    if output is not None and output.suffix.lower() != ".json":
        raise InvalidInput(
            "the network is written as JSON, but the output is called {}", output.name, "use a name that ends in .json"
        )
    network = read_network(file, options)
    for note in network.notes:
        notice(note)
    topology = network.topology
    bounds = machine_bounds(topology)
    shown: list[Table | str] = [_summary(topology, None, bounds)]
    if output is not None:
        save_topology(topology, output)
        counts = f"{topology.compute_count} nodes, {topology.switch_count} switches, {len(topology.links)} links"
        shown.append(f"{output}: {counts}")
    document = show_topology(topology) | bounds | {"output": None if output is None else str(output)}
    step = "the same with -o network.json" if output is None else f"chorale auto {quote(f'file:{output}')}"
    return Result(document, *shown, next_step=step)


def _summary(topology: Topology, plot: Path | None, bounds: dict[str, Any]) -> Table:
    facts, degree = describe_topology(topology), topology.degree
    unit = {"link": "link capacity"}.get(topology.bandwidth_unit, topology.bandwidth_unit)
    expected = topology.expected
    abilities = Counter(topology.abilities.values())
    rows: dict[str, Any] = {
        "compute nodes": facts["nodes"],
        "switches": facts["switches"],
        "links": facts["links"],
        "degree": "not regular" if degree is None else degree,
        "diameter": facts["diameter"],
        "bandwidths": f"{_bandwidths(topology)} ({unit})",
        **({} if expected is None else {"the library expects": f"{_bandwidths(expected)} ({unit})"}),
        **{able_text(ability, topology): f"{count} switches" for ability, count in abilities.items()},
        "vertex-transitive": _ANSWERS[is_vertex_transitive(topology)],
        "Eulerian": _ANSWERS[topology.is_eulerian],
        "id": short_id(facts["id"]),
        **({} if plot is None else {"drawing": plot}),
    }
    if bounds:
        proven, expects = bounds["bound"], bounds["expected"]
        rows[f"allreduce, {bound_label(proven['certificate'])}"] = algbw_text(Fraction(proven["time_per_byte"]), unit)
        if expects is not None:
            rows["allreduce, expected from the library"] = algbw_text(Fraction(expects["time_per_byte"]), unit)
    table = Table(title=facts["spec"], title_justify="left", show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, str(value))
    for name, text in assumption_rows(assumption_facts(topology)):
        table.add_row(name, text)
    return table


def _bandwidths(topology: Topology) -> str:
    texts = [rational_text(bandwidth) for bandwidth in topology.links.bandwidths]
    return ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}, {len(texts)} values"


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
        degree: Number of links out of, and into, every node.
        bidirectional: Require the reverse of every link.
        seeds: Number of random searches for Cayley digraphs, each with another seed; 0: no search.
        collective: Rank by allreduce (steps and bandwidth), alltoall (rate), or both.
        keep_cables: CSV file of existing cables (from,to); nodes are placed so that most of them stay.
        moves: With --keep-cables: maximum number of new cables.
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
    """Parse N or FIRST:LAST; return the node counts. For a range, leave out counts for which no network exists."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and len(first) < 10 and (not colon or (last.isdecimal() and len(last) < 10))):
        raise InvalidInput("--nodes must be a number or a range", text, "write, for example, 64 or 5:2000")
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
    """Return the workload for which networks are ranked, or None if no option describes one."""
    given = {"--alpha-us": alpha_us, "--size": size, "--bandwidth-gbps": bandwidth_gbps}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if alpha_us is None or size is None or bandwidth_gbps is None:
        rule = "a workload must have --alpha-us, --size and --bandwidth-gbps"
        raise InvalidInput(rule, f"no {', '.join(missing)}", "give all three or none")
    alpha, bandwidth = parse_rational(alpha_us, "--alpha-us"), parse_rational(bandwidth_gbps, "--bandwidth-gbps")
    return Workload(alpha, parse_size(size), bandwidth)
