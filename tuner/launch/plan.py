"""Prepares a launch: replaces `auto` and `library` by names, reads program files, and computes the plan for dry runs.

Also derives prior knowledge for the search from earlier launches and recorded runs.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.api.base import LIBRARY
from chorale.runners.api.config import TimeSource
from chorale.runners.api.registry import DEFAULT_LINK_MBPS, SimulatedConfig
from chorale.runners.api.units import format_size
from chorale.runners.nccl.parameters import is_library_method, settings_named
from chorale.runners.recorded.runner import DEFAULT_BUFFER_BYTES, TOPOLOGIES
from chorale.runners.recorded.table import mi250_table
from chorale.runners.simulated.library_model import MPI_METHODS
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.build.request import BuildResult
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, unknown_name
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.identity import content_id, rational_text
from chorale.synth.methods.auto import AUTO, TimedChoices
from chorale.synth.methods.catalog import AUTO_METHOD, METHODS
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.programs.program import AnyProgram
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import BASELINE_OF_LIBRARY, Campaign
from chorale.tuner.config.values import is_program_file_name, read_program_file
from chorale.tuner.costs.pricing import Pricing, program_time_per_byte
from chorale.tuner.files.home import Home
from chorale.tuner.launch.final_round import final_limit_s
from chorale.tuner.replay.tasks import replay_tasks
from chorale.tuner.search.size_model import Floats, Prior, nearest_sizes
from chorale.tuner.search.space import SearchSpace, can_execute, search_space
from chorale.tuner.trials.journal import Launch, conditions_of, launch_codec, launch_folders
from chorale.tuner.trials.records import Candidate, CompleteTrial
from chorale.tuner.trials.store import JOURNAL, read_snapshot

_VARIANTS = ("forest-phases", "traditional-torus")
"""Methods that `auto` skips because they differ little from other methods."""
_MAX_STARTS = 6
SEARCH_SHARE, FINAL_SHARE = 0.45, 0.35
"""Fractions of a Slurm job's time for the trials and for the final comparison; promotion and report get the rest."""
_judged: dict[tuple[str, str], BuildResult] = {}
"""(name of a program file, hash of all inputs of its check) -> result of the check, so that files are checked once."""


def campaign_on(campaign: Campaign, topology: Topology) -> Campaign:
    """Return the campaign with `auto` (in the methods) and `library` (in the baselines) replaced by names.

    `auto` becomes the methods predicted to be the fastest at each size, then the second fastest, and so on. `library`
    becomes the algorithms of the runner's library. If there are none, or if the runner computes times from a model, the
    MPI algorithms predicted to be the fastest are added.
    """
    changes: dict[str, object] = {}
    if AUTO in campaign.search.methods:
        choices, found = _choices(campaign, topology), list[str]()
        while len(found) < 5 and (more := _fastest(choices, campaign.sizes, [*_VARIANTS, *found])):
            found += more
        methods = [
            name for each in campaign.search.methods for name in ((found or ["ring"]) if each == AUTO else [each])
        ]
        changes["search"] = campaign.search.model_copy(update={"methods": list(dict.fromkeys(methods))})
    if BASELINE_OF_LIBRARY in campaign.baselines:
        config, collective = campaign.runner.config, parse_collective(campaign.collective).name
        library = [LIBRARY + name for name in config.library_algorithms(collective, topology)]
        if not library or config.capabilities.times is TimeSource.MODEL:
            mpi = [method for _, _, method in MPI_METHODS.get(collective.value, [("", "", "alltoall")])]
            fastest = _fastest(_choices(campaign, topology, mpi), campaign.sizes)
            library += fastest or ([] if library else ["ring"])
        names = [name for each in campaign.baselines for name in (library if each == BASELINE_OF_LIBRARY else [each])]
        changes["baselines"] = list(dict.fromkeys(names))
    return campaign.model_copy(update=changes)


def first_guesses(campaign: Campaign, topology: Topology, space: SearchSpace) -> list[Candidate]:
    """Return one candidate per method: first those predicted to be fastest, then the others in the campaign's order."""
    points = {point.method: point for point in space.starts()}
    methods = [name for name in points if name in METHODS and name in AUTO_METHOD.names]
    fastest = _fastest(_choices(campaign, topology, methods), campaign.sizes) if len(methods) > 1 else []
    return [points[name] for name in dict.fromkeys([*fastest, *points])]


def _choices(campaign: Campaign, topology: Topology, among: Sequence[str] | None = None) -> TimedChoices:
    """Predict the times of methods from the link rate and 10 us per message; a simulated runner uses its own model."""
    config = campaign.runner.config.for_network(topology)
    if isinstance(config, SimulatedConfig):
        model = config.network_model()
    else:
        rate = config.link_rate_mbps or (DEFAULT_LINK_MBPS if topology.bandwidth_unit == "link" else None)
        gbps = None if rate is None else str(Fraction(str(rate)) / 1000)
        model = Pricing.of({"alpha_us": "10", "link_gbps": gbps}).network(topology)
    task = SynthesisTask(topology, parse_collective(campaign.collective), Options(), SerialExecutor())
    return AUTO_METHOD.timed(task, model, among)


def _fastest(choices: TimedChoices, sizes_bytes: Sequence[int], without: Sequence[str] = ()) -> list[str]:
    """Return the method predicted to be fastest at each size, largest size first; empty if no method is applicable."""
    try:
        chosen = [choices.at(size_bytes, without).method for size_bytes in sorted(sizes_bytes, reverse=True)]
    except InvalidInput:
        return []
    return list(dict.fromkeys(chosen))


def format_duration(seconds: float) -> str:
    """Format seconds for display: `0.4 s`, `35 s`, `4:05 min`, `2:10 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


def min_measuring_s(campaign: Campaign, topology: Topology, trials: int) -> float | None:
    """Return the shortest time in which the links can carry the data of `trials` trials, in seconds.

    Assumes that every program reaches the collective's lower bound. Includes warm-up and all repetitions of candidates
    and baselines, but not preparation. Programs that leave links idle, such as rings, take longer. Returns None if the
    link rate is not known in advance: without `runner.link_mbps`, on networks with bandwidths in other units, and for
    runners that execute nothing.
    """
    rate_mbps = campaign.runner.config.link_rate_mbps
    if rate_mbps is None or not campaign.runner.capabilities.is_live or topology.bandwidth_unit != "link":
        return None
    bytes_per_s = Fraction(rate_mbps) * 10**6 / 8
    bound = lower_bound(topology, parse_collective(campaign.collective)).value
    runs = trials * (campaign.repeats + 1) * (1 + len(campaign.baselines))
    return float(runs * sum(campaign.sizes) * bound / bytes_per_s)


def check_methods(campaign: Campaign, files: bool = False) -> None:
    """Raise InvalidInput for an unknown method or baseline. `check_runner` checks baselines of the library.

    files: whether baselines may be files on this machine, which `adopted_programs` checks
    """
    for key, methods in (("search.methods", campaign.search.methods), ("baselines", campaign.baselines)):
        for method in methods:
            is_library = key == "baselines" and method.startswith(LIBRARY)
            is_library |= key == "baselines" and method == BASELINE_OF_LIBRARY
            is_file = files and key == "baselines" and is_program_file_name(method)
            if key == "search.methods" and is_library_method(method):
                rule = "campaign key `search.methods`: an algorithm of the library"
                if not campaign.runner.capabilities.library_settings:
                    raise InvalidInput(
                        f"{rule} needs the nccl runner", f"{method} with {campaign.runner.kind}", "change `runner.kind`"
                    )
                if method.count(":") > 1:
                    raise InvalidInput(
                        f"{rule} has its protocol under `search.protocol`, not in {{}}",
                        method,
                        "leave the protocol out",
                    )
                settings_named(method)
            elif method not in METHODS and not is_library and not is_file:
                raise unknown_name(f"method in campaign key `{key}`:", method, METHODS)


def check_runner(campaign: Campaign, topology: Topology) -> None:
    """Raise InvalidInput if the runner cannot run `topology`, or lacks a library algorithm that is a baseline."""
    config = campaign.runner.config
    config.check_plan(campaign.runner.measurers, topology)
    named = [name for name in campaign.baselines if name.startswith(LIBRARY)]
    if not named or not config.capabilities.unprivileged:
        return  # other runners look for libraries on the machine that measures
    collective = parse_collective(campaign.collective).name
    is_model = config.capabilities.times is TimeSource.MODEL
    library = config.library_algorithms(collective, topology) if is_model else config.create().library(collective.value)
    has = [LIBRARY + name for name in library]
    for name in named:
        if name not in has:
            rule = f"campaign key `baselines`: the {config.name} runner has {', '.join(has) or 'no library'}, not {{}}"
            way_out = "let the runner choose what to compare with: --set baselines=[library]"
            raise InvalidInput(rule, name, way_out)


def campaign_plan(campaign: Campaign, topology: Topology, priors: Sequence[Prior] = ()) -> dict[str, Any]:
    """Return the plan that `chorale tune --dry-run` shows, including the `priors` from which the search would start."""
    space, minutes = search_space(campaign, topology), campaign.budget.minutes
    trials = min(campaign.budget.trials, len(space))
    stopped_by = ["budget.trials" if trials == campaign.budget.trials else "the search space"]
    at_most_s = None
    if minutes is not None:
        stopped_by.append("budget.minutes")
        trials_s = 60 * minutes * campaign.parallel
        at_most_s = 60 * minutes + final_limit_s(campaign.final.minutes, trials_s, len(campaign.sizes))
    return {
        "campaign": campaign.name,
        "topology": {"spec": topology.spec, "id": topology.id, "nodes": topology.compute_count},
        "collective": campaign.collective,
        "target": campaign.runner.config.lowering().target,
        "node_to_measure_on": str(campaign.runner.config.resources(campaign.runner.measurers, topology)),
        "sizes_bytes": list(campaign.sizes),
        "points": len(space),
        "pruned_beforehand": sum(space.refused.values()),
        "reasons": dict(space.refused),
        "sampler": campaign.resolved_sampler,
        "trials": trials,
        "stopped_by": " or ".join(stopped_by),
        "at_most_seconds": at_most_s,
        "least_measuring_seconds": min_measuring_s(campaign, topology, trials),
        "prior": [{"name": prior.name, "points": sum(point in space for point in prior.gains)} for prior in priors],
        "first": [candidate.parameters for candidate in first_guesses(campaign, topology, space)],
        "resolved": campaign.model_dump(by_alias=True, mode="json"),
    }


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines in which `chorale tune --dry-run` prints the JSON document `plan`."""
    campaign = plan["resolved"]
    network = f"{plan['topology']['spec']} ({plan['topology']['nodes']} ranks)"
    yield f"{plan['campaign']}: {plan['collective']} on {network}, {campaign['runner']['kind']} runner"
    sizes = ", ".join(format_size(size) for size in plan["sizes_bytes"])
    yield f"sizes {sizes}; compared with {', '.join(campaign['baselines'])}; {campaign['repeats']} repetitions"
    yield f"{plan['points']} configurations, {plan['pruned_beforehand']} infeasible"
    for reason, count in plan["reasons"].items():
        yield f"  {count}: {reason}"
    first = [str(Candidate(**parameters)) for parameters in plan["first"]]
    more = ", …" if len(first) > _MAX_STARTS else ""
    yield f"{plan['trials']} trials by {plan['sampler']}, the first: {', '.join(first[:_MAX_STARTS])}{more}"
    for prior in plan["prior"]:
        yield f"  prior from {prior['name']}, {prior['points']} points; dropped if it does not predict the trials"
    yield f"stopped by {plan['stopped_by']}"
    if (all_s := plan["at_most_seconds"]) is not None:
        search_s = 60 * campaign["budget"]["minutes"]
        yield f"  search at most {format_duration(search_s)}, final at most {format_duration(all_s - search_s)}"
    if (least_s := plan["least_measuring_seconds"]) is not None:
        yield f"no program could be measured in less than {format_duration(least_s)} on these links"


def budget_within(campaign: Campaign, seconds: float, goes_on: bool) -> Campaign:
    """Return the campaign with time limits that let it end within `seconds`. Shorter limits are kept.

    goes_on: whether another job continues the search; if so, only the final comparison gets a limit
    """
    changes = {}
    for key, share in ({"final": FINAL_SHARE} | ({} if goes_on else {"budget": SEARCH_SHARE})).items():
        section = getattr(campaign, key)
        most = share * seconds / 60
        changes[key] = section.model_copy(update={"minutes": min(section.minutes or most, most)})
    return campaign.model_copy(update=changes)


def adopted_programs(campaign: Campaign, topology: Topology) -> Mapping[str, BuildResult]:
    """Return the programs that `campaign` takes from files: name in candidates and records -> program.

    Raises InvalidInput, naming the key and the file, if the campaign cannot measure a program. Raises CheckFailed
    if a program does not perform its collective correctly on `topology`.
    """
    paths = [("search.programs", path) for path in campaign.search.programs]
    paths += [("baselines", name) for name in campaign.baselines if is_program_file_name(name)]
    results = {}
    for key, path in paths:
        try:
            file = read_program_file(path)
        except InvalidInput as error:
            raise InvalidInput(f"campaign key `{key}`: {error.rule}", error.value, error.way_out) from None
        facts = [topology.id, campaign.collective, list(campaign.sizes), campaign.runner.model_dump(mode="json"), key]
        identity = file.name, content_id({"file": file.digest, "facts": repr(facts)})
        if identity not in _judged:
            place = f"campaign key `{key}`: {file.path}"
            try:
                lifted = read_unchecked(file.text)
            except InvalidInput as error:
                raise InvalidInput(f"{place}: {error.rule}", error.value, error.way_out) from None
            program = lifted.program
            if program.collective.name.value != campaign.collective:
                rule = f"{place}: a program must be for the collective of the campaign, {campaign.collective}"
                raise InvalidInput(rule, program.collective, "leave it out, or change `collective`")
            verdict = judge(lifted, topology)
            for violation in verdict.violations:
                rule = f"{place}: a program must compute its collective correctly on {topology.spec} ({violation.rule})"
                raise CheckFailed(rule, violation.message, f"see all violations with `chorale lift {file.path}`")
            program = bounded(program, verdict.max_bytes)
            _require_measurable(campaign, place, program)
            _judged[identity] = BuildResult(
                schedule_id="",
                schedule=b"",
                program_id=content_id({"adopted": file.digest}),
                program=program,
                program_text=file.text.decode(),
                time_per_byte=rational_text(program_time_per_byte(program, topology)),
                steps=0,
                chunks_per_shard=max(1, program.chunks // len(program.ranks)),
            )
        results[file.name] = _judged[identity]
    return results


def _require_measurable(campaign: Campaign, place: str, program: AnyProgram) -> None:
    """Raise InvalidInput unless the runner can execute `program` at every size in the campaign."""
    if campaign.runner.capabilities.times is TimeSource.RECORD:
        rule, way_out = f"{place}: this runner cannot measure programs", "choose a runner that executes programs"
        raise InvalidInput(rule, f"the {campaign.runner.kind} runner", way_out)
    if not can_execute(campaign.runner, program):
        kind, lowering = campaign.runner.kind, campaign.runner.config.lowering()
        placement = "in place" if lowering.in_place else "out of place"
        rule = f"programs for the {kind} runner must be {lowering.target}, {placement}"
        value = f"{program.target}, {'in place' if program.in_place else 'out of place'}"
        way_out = "choose the runner local, or lower the program accordingly"
        if program.one_sided:
            rule = "plans of MSCCL++ must be measured with shared memory or a model"
            rule += f", not with the {kind} runner as configured"
            value, way_out = program.target, "use the runner {kind: local, where: loopback}, or simulated"
        raise InvalidInput(f"{place}: {rule}", value, way_out)
    for size_bytes in campaign.sizes:
        if size_bytes < program.min_bytes or (program.max_bytes and size_bytes > program.max_bytes):
            most = format_size(program.max_bytes) if program.max_bytes else "any size"
            rule = f"{place}: a program must support all sizes of the campaign"
            value = f"{format_size(size_bytes)}, and it is for {format_size(program.min_bytes)} to {most}"
            raise InvalidInput(rule, value, "leave the size out, or the program")


_log = logging.getLogger("chorale.prior")

RECORD = "record"
"""Value of the campaign key `prior` that stands for the recorded runs shipped with Chorale."""

MOST_LAUNCHES = 40
"""Maximum number of earlier launches to read, so that campaigns start fast. The most similar ones are read first."""

MOST_BYTES = 4 * 2**20
LEAST_POINTS = 3
"""Minimum number of points of the search space that a prior must cover to be used."""

_GENERATORS = {"ForestColl": "forest"}
"""Schedule generator named in the MI250 record -> Chorale method that produces equivalent schedules."""


@dataclass(frozen=True, slots=True)
class _Earlier:
    folder: Path
    launch: Launch
    rank: int


def learned_priors(
    campaign: Campaign, topology: Topology, space: SearchSpace, home: Home, launch_id: str = ""
) -> list[Prior]:
    """Return at most four priors for points of `space`, beginning with the priors from the most similar conditions.

    The sources are launches in the data folder and Chorale's MI250 record. The launch `launch_id`, which is being
    started or resumed, is left out. The result depends only on the files. Raises InvalidInput if the campaign names a
    source that has no usable information.
    """
    if campaign.prior == "none" or campaign.resolved_sampler != "sizes-gp":
        return []
    named = None if campaign.prior == "auto" else set(campaign.prior)
    earlier = _earlier_launches(campaign, topology, home, named)
    priors = list(_of_launches([one for one in earlier if one.launch.launch_id != launch_id], campaign.sizes, space))
    if named is None or RECORD in named:
        priors += _of_record(campaign, topology, space)
    for name in sorted((named or set()) - {RECORD} - {prior.source for prior in priors}):
        way_out = "name campaigns of the data folder with the same collective and points, record, or auto"
        raise InvalidInput("campaign key `prior`: the source {} has no point in the search space", name, way_out)
    return priors[:4]


def _of_launches(earlier: Sequence[_Earlier], sizes_bytes: Sequence[int], space: SearchSpace) -> Iterator[Prior]:
    """Yield a prior for each group of launches under equal conditions that measured enough points of `space`."""
    groups: dict[str, list[_Earlier]] = defaultdict(list)
    for one in earlier:  # gains are comparable only for the same baselines under the same conditions
        conditions = [one.launch.conditions[key] for key in ("topology", "runner", "baselines")]
        groups[json.dumps(conditions, sort_keys=True)].append(one)
    for launches in groups.values():
        gains: dict[Candidate, list[Floats]] = defaultdict(list)
        measured = [(one, points) for one in launches if (points := list(_measured(one, sizes_bytes, space)))]
        for point, values in chain.from_iterable(points for _, points in measured):
            gains[point].append(values)
        if len(gains) >= LEAST_POINTS:
            used = [one for one, _ in measured]
            name = ", ".join(f"{one.folder.parent.name} launch {one.folder.name}" for one in used)
            if len(used) > 2:
                campaigns = list(dict.fromkeys(one.folder.parent.name for one in used))
                name = f"{len(used)} launches of {', '.join(campaigns[:3])}{', …' if len(campaigns) > 3 else ''}"
            first = used[0].launch
            name += f" ({first.campaign.get('topology')}, {first.conditions['runner']['kind']})"
            means = {point: np.mean(values, axis=0) for point, values in gains.items()}
            yield Prior(means, name, used[0].folder.parent.name)


def _earlier_launches(campaign: Campaign, topology: Topology, home: Home, named: set[str] | None) -> list[_Earlier]:
    """Return earlier launches of the collective, the most similar ones first.

    The order is: same network and runner, same network, same runner, all others. Newer launches precede older ones.
    If `named` is given, only these campaigns are considered.
    """
    conditions = conditions_of(campaign, topology)
    earlier = []
    names = sorted(path.name for path in home.campaigns.glob("*") if named is None or path.name in named)
    for folder in (folder for name in names for folder in launch_folders(home, name)):
        try:
            with (folder / JOURNAL).open("rb") as lines:
                launch = launch_codec.validate_json(lines.readline(2**20))
        except (OSError, ValueError):
            continue
        if launch.conditions.get("collective") != campaign.collective:
            continue
        if {"topology", "runner", "baselines"} <= launch.conditions.keys():
            same = [launch.conditions[key] == conditions[key] for key in ("runner", "topology")]
            earlier.append(_Earlier(folder, launch, 3 - same[0] - 2 * same[1]))
    earlier.sort(key=lambda one: (one.rank, -one.launch.started_unix_s, one.launch.launch_id))
    chosen, read_bytes = [], 0
    for one in earlier[:MOST_LAUNCHES]:
        read_bytes += (one.folder / JOURNAL).stat().st_size
        if read_bytes <= MOST_BYTES:
            chosen.append(one)
    return chosen


def _measured(one: _Earlier, sizes_bytes: Sequence[int], space: SearchSpace) -> Iterator[tuple[Candidate, Floats]]:
    """Yield the points of `space` that a launch measured, with log speed-ups at the sizes nearest to `sizes_bytes`."""
    try:
        trials = read_snapshot(one.folder).trials
    except (OSError, ChoraleError) as error:
        _log.info("%s cannot be used as a prior: %s", one.folder, error)
        return
    for trial in trials:
        if isinstance(trial, CompleteTrial) and trial.candidate in space:
            nearest = nearest_sizes([size.size_bytes for size in trial.sizes], sizes_bytes)
            times = np.array([(size.baseline_median_s, size.median_s) for size in trial.sizes])[nearest]
            if np.all(np.isfinite(times)) and np.all(times > 0):
                yield trial.candidate, np.log(times[:, 0] / times[:, 1])


def _of_record(campaign: Campaign, topology: Topology, space: SearchSpace) -> Iterator[Prior]:
    """Yield a prior for each fabric in the MI250 record, but not the replayed one; only for GPU runners and replays."""
    abilities = campaign.runner.capabilities
    replays = abilities.times is TimeSource.RECORD
    if not (replays or abilities.protocols):
        return
    for task in replay_tasks(mi250_table()):
        fabric = task.name.removeprefix(f"{task.collective} ")
        spec = TOPOLOGIES.get(fabric)
        if task.collective != campaign.collective or spec is None:
            continue
        if not (replays and parse_topology(spec).id == topology.id):
            nearest = nearest_sizes(task.sizes_bytes, campaign.sizes)
            gains: dict[Candidate, Floats] = {}
            for point, times_s in zip(task.candidates, task.times_s, strict=True):
                same = replace(point, method=_GENERATORS.get(point.method, point.method))
                values = np.log(task.library_s / times_s)[nearest]
                default = replace(same, buffer_bytes=None) if same.buffer_bytes == DEFAULT_BUFFER_BYTES else same
                gains |= {one: values for one in (same, default) if one in space}
            if len(gains) >= LEAST_POINTS:
                yield Prior(gains, f"recorded runs on {spec}", RECORD)
