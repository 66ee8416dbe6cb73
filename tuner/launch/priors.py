"""What the search of a launch knows in advance, from earlier launches and recorded runs."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from chorale.runners.api.config import TimeSource
from chorale.runners.recorded.runner import DEFAULT_BUFFER_BYTES, TOPOLOGIES
from chorale.runners.recorded.table import mi250_table
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.replay.tasks import replay_tasks
from chorale.tuner.search.size_model import Floats, Prior, nearest_sizes
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.journal import Launch, conditions_of, launch_codec, launch_folders
from chorale.tuner.trials.records import Candidate, CompleteTrial
from chorale.tuner.trials.store import JOURNAL, read_snapshot

_log = logging.getLogger("chorale.prior")

RECORD = "record"
"""Value of the campaign key `prior` for the recorded runs that Chorale ships, instead of a campaign's name."""

MOST_LAUNCHES = 40
"""Maximum number of launches to read, the most similar and newest first, so that campaigns still start fast."""

MOST_BYTES = 4 * 2**20
LEAST_POINTS = 3
"""Minimum number of points of the search space that a prior must cover to be used."""

_GENERATORS = {"ForestColl": "forest"}
"""Generator named in the record -> Chorale method that produces equivalent schedules."""


@dataclass(frozen=True, slots=True)
class _Earlier:
    folder: Path
    launch: Launch
    rank: int


def learned_priors(
    campaign: Campaign, topology: Topology, space: SearchSpace, home: Home, launch_id: str = ""
) -> list[Prior]:
    """Return priors for points of `space` from the data folder and Chorale's MI250 record, the most similar
    conditions first.

    The launch `launch_id`, which is being started or resumed, is left out. The result depends only on the files. Raises
    InvalidInput if the campaign names a source that has no usable information.
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
    """Yield a prior for each group of earlier launches with the same conditions that measured points of `space`."""
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
    """Return earlier launches of the collective: under the same conditions, on the same network, then all others."""
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
    """Yield the points of `space` that a launch measured, with log speed-ups at its sizes nearest to `sizes_bytes`."""
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
    """For GPU runners, yield a prior for each fabric in Chorale's MI250 record, except for the one being replayed."""
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
