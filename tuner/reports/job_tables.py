"""Builds tuning tables for jobs from program files, campaigns, the registry or predictions, and displays them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Any, TypeAlias

from rich.table import Table as RichTable
from rich.text import Text

from chorale.job.files import read_file
from chorale.job.table.layout import ANY_DTYPE, FORMAT, JobEntry, Table, TableProgram
from chorale.job.table.merging import SizeRange, require_disjoint, sort_key
from chorale.job.table.verification import SWITCHES, table_program, text_violations, unlinked
from chorale.runners.api.config import CPU_TARGET
from chorale.runners.api.registry import is_simulated, runner_config
from chorale.runners.api.units import format_us
from chorale.runners.engine.library import DataType
from chorale.runners.measurement.driver import median_interval
from chorale.synth import (
    CheckFailed,
    Collective,
    InvalidInput,
    LoweringOptions,
    Options,
    SerialExecutor,
    Topology,
    VerifiedSchedule,
    lift_code,
    parse_collective,
)
from chorale.synth.bounds.lower_bound import bound_of_ranks, bound_of_schedule
from chorale.synth.bounds.optimum import Bound
from chorale.synth.build.build import build_program
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import unknown_name
from chorale.synth.methods.catalog import AUTO_METHOD, METHODS
from chorale.synth.methods.method import SynthesisTask
from chorale.synth.programs.library_call import LibrarySettings, is_library_text, parse_library_call
from chorale.synth.programs.program import AnyProgram
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.judge import reachability
from chorale.synth.targets.xml_text import MAX_TEXT_BYTES
from chorale.synth.verify.verify import verify
from chorale.tuner.costs.pricing import Pricing, program_time_per_byte
from chorale.tuner.files.home import Home
from chorale.tuner.files.program_files import is_plan_file, load_unchecked
from chorale.tuner.files.schedule_files import absolute_spec, is_schedule_name, load_schedule, load_topology
from chorale.tuner.reports.bound import checked
from chorale.tuner.reports.synthesis import describe_topology
from chorale.tuner.reports.tables import aligned_rows
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import COLLECTIVE, SIZE_CLASS, TOPOLOGY_ID, load_best
from chorale.tuner.trials.journal import launch_folders
from chorale.tuner.trials.records import SizeClass, TableEntry, table_ranges, tuning_table
from chorale.tuner.trials.store import LaunchSnapshot, is_begun, read_snapshot

DTYPES = (ANY_DTYPE, *(item.name.lower() for item in DataType))


Row: TypeAlias = tuple[JobEntry, TableProgram | None]
"""A table entry for a range of sizes, for any element type and all ranks of a job, together with its program."""
MEASURED_DTYPE = "float32"
"""Element type that campaigns use."""
PREDICTED = "predicted"
COLLECTIVES = (ALLREDUCE, ALLGATHER, REDUCE_SCATTER)
SIZES = tuple(2**exponent for exponent in range(10, 31, 2))
"""Sizes in bytes at which methods are compared. Each represents the sizes up to the next one."""
SHOWN_DIGITS = 12
_SHOWN_OF_PROGRAMS = ("target", "method", "collective", "root", "ranks", "order_of_additions")


def table_row(
    collective: Collective,
    sizes: SizeRange,
    program: TableProgram | None,
    measured: Mapping[str, Any] | None = None,
    certificate: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    settings: LibrarySettings | None = None,
) -> Row:
    """Return the table entry for a range of sizes; see `JobEntry` for the fields."""
    digest, stated = None if program is None else program.digest, None if settings is None else settings.to_json()
    what = collective.name.value, ANY_DTYPE, None, collective.root, sizes.first, sizes.last, digest
    return JobEntry(*what, measured, certificate, provenance or {}, stated), program


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The group of ranks to which a table applies: all ranks of a job, or some of them.

    ranks:   job ranks in the order of the program's ranks; None for all ranks in ascending order
    of_job:  number of ranks in the job; None if it equals the number of ranks in the network
    """

    ranks: tuple[int, ...] | None = None
    of_job: int | None = None

    def job_ranks(self, otherwise: int) -> int:
        """Return the job's number of ranks or, if not given, `otherwise`: the number of ranks of network or program."""
        return otherwise if self.of_job is None else self.of_job

    def check(self, program_ranks: int, job_ranks: int) -> None:
        """Raise InvalidInput if the job lacks ranks of the group, or if the sizes of program and group differ."""
        ranks = range(job_ranks) if self.ranks is None else self.ranks
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(job_ranks)):
            value = f"{','.join(map(str, ranks))} of {job_ranks} ranks"
            way_out = "name each rank once, and the job's number of ranks with --ranks"
            raise InvalidInput("the group names ranks that the job does not have: {}", value, way_out)
        if len(ranks) != program_ranks:
            value = f"{len(ranks)} ranks for programs of {program_ranks}"
            way_out = "name the ranks that run the programs with --group, and the job's number of ranks with --ranks"
            raise InvalidInput("group and program have different numbers of ranks: {}", value, way_out)


def parse_group(text: str) -> tuple[int, ...]:
    if not text or not all(part.strip().isdecimal() for part in text.split(",")):
        raise InvalidInput("cannot read the list of ranks '{}'", text, "separate ranks by commas, such as 0,2,4,6")
    return tuple(int(part) for part in text.split(","))


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Parse a list of element types such as float32,bfloat16; `any` stands for all types."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise unknown_name("element type", name, DTYPES)
    return names


def assemble(
    rows: Sequence[Row],
    network: Topology | None,
    group: JobGroup,
    dtypes: Sequence[str],
    provenance: Mapping[str, Any],
    *,
    network_is_of_job: bool | None = None,
) -> Table:
    """Return the table of `rows` (at least one), with an entry for each row and element type.

    network_is_of_job: whether the network's ranks are the job's ranks rather than the programs' ranks. By default, True
                       if the group has all ranks in ascending order.
    Raises InvalidInput if sizes of entries overlap, or if the group does not match the job or the programs.
    """
    programs = {program.digest: program for _, program in rows if program is not None}
    sizes = [program.ranks for program in programs.values()]
    program_ranks = sizes[0] if sizes else 0 if network is None else network.compute_count
    job_ranks = group.job_ranks(program_ranks if network is None else network.compute_count)
    for size in set(sizes) or {program_ranks}:
        group.check(size, job_ranks)
    ranks = None if group.ranks == tuple(range(job_ranks)) else group.ranks
    entries = [replace(entry, dtype=dtype, group=ranks) for entry, _ in rows for dtype in dtypes]
    require_disjoint(entries, "write a table for each, and join them with `chorale table merge --prefer`")
    of_job = ranks is None if network_is_of_job is None else network_is_of_job
    facts = {} if network is None else {**describe_topology(network), "spec": absolute_spec(network.spec)}
    return Table(
        facts if of_job else {},
        job_ranks,
        tuple(sorted(entries, key=sort_key)),
        dict(sorted(programs.items())),
        {**provenance, "code_version": version("chorale-collectives")},
    )


def checked_program(
    text: bytes, name: str, method: str | None = None, parameters: Mapping[str, Any] | None = None
) -> tuple[AnyProgram, TableProgram]:
    """Check the program or plan in `text`; return it as a program and in the form that tuning tables store.

    method, parameters: how the program was generated; by default taken from the program itself
    name:               the program's name in error messages
    Raises InvalidInput if jobs cannot execute it, and CheckFailed if it does not perform its collective correctly.
    """
    for rule, message in text_violations(text):
        if rule == SWITCHES:
            way_out = "choose a program in which only ranks add; in a campaign, leave out the method in-network"
            raise InvalidInput(
                "the program needs switches that add, which jobs lack: {}", f"{name}: {message}", way_out
            )
        demand = f"a program must compute its collective correctly ({rule})"
        raise CheckFailed(demand, f"{name}: {message}", "lower it again")
    program = lift_code(text)
    words = program.name.split()  # such as `allgather bfb torus:4x4`
    named = words[1] if len(words) == 3 and words[1] in METHODS else ""
    stated = {
        name: getattr(program, name)
        for name in ("chunks", "channels", "protocol", "in_place")
        if hasattr(program, name)
    }
    return program, table_program(text, program.target, method or named, parameters or stated)


def schedule_certificate(verified: VerifiedSchedule) -> dict[str, Any]:
    """Return the relative gap between a schedule and the lower bound, with the bound's checked certificate."""
    schedule, achieved = verified.schedule, verified.cost.time_per_byte
    bound = bound_of_schedule(schedule, achieved)
    return _gap_document(schedule.topology, schedule.collective, achieved, bound) | {"schedule_id": schedule.id}


def program_certificate(program: AnyProgram, network: Topology) -> dict[str, Any]:
    """Return a program's relative gap to the bound if only ranks reduce, and the bound's certificate."""
    achieved = program_time_per_byte(program, network)
    return _gap_document(network, program.collective, achieved, bound_of_ranks(network, program.collective, achieved))


def _gap_document(network: Topology, collective: Collective, achieved: Fraction, bound: Bound) -> dict[str, Any]:
    return {
        "lower_bound": str(bound.value),
        "achieved": str(achieved),
        "gap": str(achieved / bound.value - 1),
        "certificate": dict(checked(network, collective, bound).to_json(network)),
    }


def table_of_files(
    files: Sequence[str], sizes: SizeRange, spec: str | None, group: JobGroup, dtypes: Sequence[str]
) -> Table:
    """Return the table of program files. Each program is used for all of `sizes`.

    spec: the job's or the group's network; by default taken from the program names that `chorale lower` writes
    """
    given = None if spec is None else load_topology(spec)
    rows, network = [], given
    for file in files:
        row, network = _row_of_file(file, sizes, given, group)
        rows.append(row)
    of_job = network is not None and network.compute_count == group.job_ranks(network.compute_count)
    whole = of_job and (group.ranks is None or given is not None)
    return assemble(rows, network, group, dtypes, {"source": "programs"}, network_is_of_job=whole)


def _row_of_file(file: str, sizes: SizeRange, given: Topology | None, group: JobGroup) -> tuple[Row, Topology | None]:
    verified = None
    if is_schedule_name(file) and not is_plan_file(file):  # lowered as for campaign runners
        verified = verify(load_schedule(file))
        own_network = verified.schedule.topology
        if given is not None and given.id != own_network.id:
            rule = f"--topology must be the topology of the schedule, {own_network.spec}"
            raise InvalidInput(rule, given.spec, "leave it out")
        text = build_program(verified, runner_config("local", None).lowering()).text.encode()
    else:
        text = read_file(file, MAX_TEXT_BYTES)
    lifted, program = checked_program(text, file)
    network = given or (verified.schedule.topology if verified else None)
    if network is None:
        with suppress(InvalidInput):  # the program's name may contain its network
            named, _ = load_unchecked(file, None)
            network = named if named.compute_count == program.ranks else None
    # Raise InvalidInput if some of the sizes are outside the range that the program states
    own = SizeRange(lifted.min_bytes, lifted.max_bytes or None)
    if sizes.without([own]):
        raise InvalidInput("the program is for other sizes: {}", f"{file}: {own}", "choose --sizes in this range")
    certificate = None if verified is None else schedule_certificate(verified)
    if network is not None:
        job_ranks = group.job_ranks(network.compute_count)
        group.check(program.ranks, job_ranks)
        of_job = given is not None and network.compute_count == job_ranks
        ranks = group.ranks if of_job and group.ranks is not None else tuple(range(program.ranks))
        require_links(file, text, ranks, network)
        if certificate is None and ranks == tuple(range(network.compute_count)):
            certificate = program_certificate(lifted, network)
            certificate |= {"schedule_id": lifted.origin} if lifted.origin else {}
    origin = {"name": lifted.name} | ({} if network is None else {"topology": {"spec": network.spec, "id": network.id}})
    return table_row(lifted.collective, sizes, program, None, certificate, origin), network


def require_links(name: str, text: bytes, ranks: tuple[int, ...], network: Topology) -> None:
    """Raise CheckFailed if a rank sends to a rank to which `network` has no path.

    Raises InvalidInput if `network` does not have all of `ranks`.
    """
    if any(rank >= network.compute_count for rank in ranks):
        value = f"{network.spec} of {network.compute_count} ranks, rank {max(ranks)}"
        raise InvalidInput("the network does not have the ranks of the program: {}", value, "name another network")
    for src, dst in unlinked(text, ranks, reachability(network)):
        value = f"{name}: rank {ranks[src]} sends to rank {ranks[dst]}"
        raise CheckFailed(
            f"a program must send only where {network.spec} has a path", value, "lower one for this network"
        )


def table_of_campaign(home: Home, name: str, group: JobGroup, dtypes: Sequence[str], beyond: bool) -> Table:
    """Return the table of the newest launch of campaign `name` that measured something.

    The table covers the size classes from the smallest to the largest measured size, or all sizes if `beyond` is set.
    If a baseline was fastest at a size, the library's own algorithm is used there. Raises CheckFailed if no launch
    measured anything, or if a program is wrong.
    """
    folders = launch_folders(home, name)
    begun = (read_snapshot(folder) for folder in reversed(folders) if is_begun(folder))
    snapshot = next((each for each in begun if each.ranked_trials), None)
    if snapshot is None and not folders:
        known = ", ".join(sorted(path.name for path in home.campaigns.glob("*") if path.is_dir())) or "none"
        raise InvalidInput("no campaign '{}' in this data folder", name, f"there are: {known}; see CHORALE_HOME")
    if snapshot is None:
        rule, way_out = "the campaign has no complete trial, so it has no table: {}", "run it again with `chorale tune`"
        raise CheckFailed(rule, name, way_out)
    campaign = snapshot.launch.campaign
    network = load_topology(campaign["topology"])
    chosen = tuning_table(snapshot.ranked_trials, campaign["objective"] == "geomean_speedup")
    origin = {"campaign": name, "launch": snapshot.launch.number, "launch_id": snapshot.launch.launch_id}
    ranges, rows = table_ranges(chosen), []
    smallest = min(SizeClass.of(entry.size_bytes).min_bytes for entry in chosen)
    largest = max(SizeClass.of(entry.size_bytes).max_bytes for entry in chosen)
    firsts = [0 if beyond else smallest, *(item.first_bytes for item in ranges[1:])]
    for item, sizes in zip(ranges, _ranges(firsts, None if beyond else largest), strict=True):
        among = [entry for entry in chosen if sizes.first <= entry.size_bytes <= (sizes.last or entry.size_bytes)]
        rows.append(_campaign_row(snapshot, network, item.entry, sizes, among, origin))
    provenance = {"source": "campaign", **origin, "runner": campaign["runner"]["kind"]}
    return assemble(rows, network, group, dtypes, provenance)


def _ranges(firsts: Sequence[int], last: int | None) -> list[SizeRange]:
    """Return a range from each of `firsts` to the next one; the last range ends at `last`.

    Sizes between two measured sizes thus use the choice for the smaller one.
    """
    return [SizeRange(*ends) for ends in zip(firsts, [*(first - 1 for first in firsts[1:]), last], strict=True)]


def _campaign_row(
    snapshot: LaunchSnapshot,
    network: Topology,
    chosen: TableEntry,
    sizes: SizeRange,
    among: Sequence[TableEntry],
    origin: Mapping[str, Any],
) -> Row:
    campaign, trial = snapshot.launch.campaign, chosen.trial
    collective = parse_collective(campaign["collective"])
    measured = {"runner": campaign["runner"]["kind"], "sizes": [_measured(entry) for entry in among]}
    make = partial(table_row, collective, sizes)
    if trial is None:
        return make(None, measured, None, {**origin, "baseline": chosen.baseline})
    if (settings := trial.candidate.settings) is not None:
        return make(None, measured, None, {**origin, "trial_id": trial.trial_id}, settings)
    text, verified = read_file(str(snapshot.folder / "programs" / f"{trial.program_id}.xml")), None
    if trial.schedule_id:  # empty for a program that was given as a file
        schedule = read_file(str(snapshot.folder / "schedules" / f"{trial.schedule_id}.parquet"))
        verified = verify(from_parquet(schedule, load_topology))
        if verified.schedule.topology.id != network.id:
            value, way_out = f"another {network.spec}", "write the table where the campaign ran"
            raise CheckFailed("the campaign was for another network: {}", value, way_out)
    program, certificate = _certified(text, f"trial {trial.number}", trial.candidate.parameters, verified, network)
    return make(program, measured, certificate, {**origin, "trial_id": trial.trial_id})


def _certified(
    text: bytes, name: str, parameters: Mapping[str, Any], verified: VerifiedSchedule | None, network: Topology
) -> tuple[TableProgram, dict[str, Any]]:
    """Check a program for all ranks of `network`. Return it and a certificate for its schedule or else for itself."""
    lifted, program = checked_program(text, name, parameters["method"], parameters)
    require_links(name, text, tuple(range(network.compute_count)), network)
    return program, program_certificate(lifted, network) if verified is None else schedule_certificate(verified)


def _measured(entry: TableEntry) -> dict[str, Any]:
    result = entry.result
    times = result.baseline_times_s[entry.baseline] if entry.trial is None else result.times_s
    interval = median_interval(times)
    return {
        "size_bytes": result.measured_bytes,
        "time_us": interval.median * 1e6,
        "time_us_interval": [interval.low * 1e6, interval.high * 1e6],
        "confidence": interval.confidence,
        "repeats": interval.samples,
        "baseline": entry.baseline,
        "baseline_time_us": result.baseline_median_s * 1e6,
        "speedup_vs_baseline": entry.speedup,
    }


def table_of_registry(
    mlflow: MlflowStore, network: Topology, group: JobGroup, dtypes: Sequence[str], alias: str = "champion"
) -> Table | None:
    """Return the table of all champions (best registered versions) for `network`.

    The table covers the sizes from a collective's smallest to its largest class, like the table of a campaign.

    Returns None if there are no champions. Raises CheckFailed if the verification of a champion fails.
    """
    classes = {
        (tags[COLLECTIVE], SizeClass(int(tags[SIZE_CLASS])))
        for name, tags in mlflow.models({TOPOLOGY_ID: network.id}).items()
        if mlflow.aliased(name, alias) is not None
    }
    if not classes:
        return None
    rows: list[Row] = []
    for collective, pairs in groupby(sorted(classes), key=lambda pair: pair[0]):
        sizes = [size_class for _, size_class in pairs]
        for span in _ranges([size_class.min_bytes for size_class in sizes], sizes[-1].max_bytes):
            rows += _class_rows(mlflow, network, collective, span, alias)
    return assemble(rows, network, group, dtypes, {"source": "registry", "alias": alias})


def _class_rows(mlflow: MlflowStore, network: Topology, collective: str, span: SizeRange, alias: str) -> Iterator[Row]:
    """Yield the rows for `span`, the sizes of one size class.

    There is one row, or several if the library runs its own algorithm only at some of the sizes.
    """
    best = load_best(mlflow, network, collective, span.first, alias)
    sizes = sorted(best.manifest["measured"], key=lambda measured: int(measured["size_bytes"]))
    runs = [list(run) for _, run in groupby(sizes, key=lambda measured: measured["library"] is None)]
    firsts = [span.first, *(int(run[0]["size_bytes"]) for run in runs[1:])]
    for run, served in zip(runs, _ranges(firsts, span.last), strict=True):
        entry = load_best(mlflow, network, collective, int(run[0]["size_bytes"]), alias)
        manifest, version, registered = entry.manifest, entry.version, entry.registered
        facts = {"runner": manifest["runner"], "sizes": [dict(size) for size in run]}
        lineage = manifest.get("lineage", {})
        origin = {"model": version.name, "version": version.version, "run_id": version.run_id}
        origin |= {key: lineage[key] for key in ("campaign", "launch_id") if key in lineage}
        make = partial(table_row, parse_collective(manifest["collective"]), served)
        if registered is None:
            yield make(None, facts, None, {**origin, "baseline": run[0]["baseline"]})
        elif is_library_text(registered.program):
            yield make(None, facts, None, origin, parse_library_call(registered.program).settings)
        else:
            name, parameters = f"{version.name} {version.version}", manifest["parameters"]
            of_program = _certified(registered.program, name, parameters, registered.verified, network)
            yield make(of_program[0], facts, of_program[1], origin)


def predicted_table(network: Topology, pricing: Pricing, group: JobGroup, dtypes: Sequence[str]) -> Table:
    """Return a table for all sizes with the programs that the congestion model predicts to be fastest."""
    rows = []
    for collective in COLLECTIVES:
        task = SynthesisTask(network, collective, Options(), SerialExecutor())
        choices = AUTO_METHOD.timed(task, pricing.network(network))
        chosen = [(size_bytes, choices.at(size_bytes)) for size_bytes in SIZES]
        runs = [list(run) for _, run in groupby(chosen, key=lambda pair: id(pair[1].traffic))]
        firsts = [0, *(run[0][0] for run in runs[1:])]
        for run, sizes in zip(runs, _ranges(firsts, None), strict=True):
            verified = verify(run[0][1].schedule())
            schedule, name = verified.schedule, f"{verified.schedule.method} {collective.name.value}"
            text = build_program(verified, LoweringOptions(CPU_TARGET)).text.encode()
            _, program = checked_program(text, name, schedule.method, schedule.parameters)
            times = [{"size_bytes": size_bytes, "time_us": float(choice.seconds) * 1e6} for size_bytes, choice in run]
            certificate, origin = schedule_certificate(verified), {"source": PREDICTED, "sizes": times}
            rows.append(table_row(collective, sizes, program, None, certificate, origin))
    return assemble(rows, network, group, dtypes, {"source": PREDICTED, "model": dict(pricing.settings_on(network))})


def table_document(table: Table, digest: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "digest": digest,
        "topology": dict(table.topology),
        "ranks": table.ranks,
        "provenance": dict(table.provenance),
        "entries": [
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(entry).items()
                if name != "settings" or value is not None
            }
            | {"simulated": is_simulated((entry.measured or {}).get("runner"))}
            for entry in table.entries
        ],
        "programs": {
            program.digest: {
                **{name: getattr(program, name) for name in _SHOWN_OF_PROGRAMS},
                "parameters": dict(program.parameters),
                "bytes": len(program.text),
            }
            for _, program in sorted(table.programs.items())
        },
    }


def table_lines(table: Table, digest: str, name: str) -> Text:
    network = table.topology.get("spec", "a network that it does not name")
    title = f"{name}: {table.ranks} ranks, {network}, digest {digest[:SHOWN_DIGITS]}"
    rows = [("collective", "type", "ranks", "sizes", "runs", "median", "gap", "from")]
    for entry in table.entries:
        is_predicted = entry.provenance.get("source") == "predicted"
        sizes = (entry.provenance if is_predicted else entry.measured or {}).get("sizes", [])
        times = [format_us(size["time_us"] / 1e6) for size in sizes]
        source = "predicted" if is_predicted else str(entry.provenance.get("campaign", ""))
        if is_simulated((entry.measured or {}).get("runner")):
            source = f"{source}, simulated".removeprefix(", ")
        rows.append(
            (
                *_what_for(entry.collective, entry.root, entry.dtype, entry.group),
                str(SizeRange.of(entry)),
                _what_runs(table, entry),
                " to ".join(dict.fromkeys([*times[:1], *times[-1:]])),
                "" if entry.certificate is None else str(entry.certificate.get("gap", "")),
                source,
            )
        )
    return aligned_rows(title, rows)


def _what_for(collective: str, root: int | None, dtype: str, group: Sequence[int] | None) -> tuple[str, str, str]:
    ranks = "all" if group is None else ",".join(map(str, group))
    return collective if root is None else f"{collective} from {root}", dtype, ranks


def _what_runs(table: Table, entry: JobEntry) -> str:
    if entry.program is not None:
        program = table.programs[entry.program]
        what = " ".join(filter(None, ["plan" if program.is_plan else "", program.method])) or "a program"
        return f"{what} {entry.program[:SHOWN_DIGITS]}"
    if entry.settings is None:
        return "the library's own"
    named = {name: "" if name in ("algorithm", "protocol") else f"{name}=" for name in entry.settings}
    return f"the library's {' '.join(f'{named[name]}{value}' for name, value in entry.settings.items())}"


def diff_lines(document: Mapping[str, Any], before: str, after: str) -> RichTable:
    rows = RichTable("collective", "type", "ranks", "sizes", before, after, title="What differs")
    for name, (old, new) in document["facts"].items():
        texts = (str(value.get("spec") if name == "topology" else value) for value in (old, new))
        rows.add_row(name, "", "", "", *texts)
    for change in document["changes"]:
        rows.add_row(
            *_what_for(change["collective"], change["root"], change["dtype"], change["group"]),
            str(SizeRange(change["min_bytes"], change["max_bytes"])),
            change["before"][:SHOWN_DIGITS],
            change["after"][:SHOWN_DIGITS],
        )
    if not document["facts"] and not document["changes"]:
        rows.add_row("all", "", "", "", "the same runs;", "its description differs")
    return rows
