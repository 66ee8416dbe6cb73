"""What the registry knows of similar networks: where a search may begin."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.campaign import Campaign
from chorale.tuner.campaigns.records import Candidate
from chorale.tuner.campaigns.size_class import SizeClass
from chorale.tuner.specs import load_topology
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import COLLECTIVE, MANIFEST_FILE, SIZE_CLASS

_log = logging.getLogger("chorale.registry")

MAX_MODELS = 50  # models that are looked into
_DEGRADED = re.compile(r"(without|scaled)\(")
MAX_CLASS_DISTANCE = 1  # powers of two between size classes that still are similar
_candidates: TypeAdapter[Candidate] = TypeAdapter(Candidate)


def similar_champions(mlflow: MlflowStore, campaign: Campaign, topology: Topology) -> list[Candidate]:
    """Return the parameters of champions for the same collective on similar networks, the nearest in size first.

    Similar are networks of the same `family` and the same degree, and size classes at most `FARTHEST_CLASS` apart from
    one of the campaign's. They are guesses to begin with: nothing of them is trusted.
    """
    wanted = {SizeClass.of(size) for size in campaign.sizes}
    found: list[tuple[int, int, str]] = []
    for name, tags in mlflow.models({COLLECTIVE: campaign.collective}).items():
        size_class = SizeClass(int(tags[SIZE_CLASS]))
        spec = tags.get("chorale.topology", "")
        if family(spec) == family(topology.spec) and any(
            one.distance(size_class) <= MAX_CLASS_DISTANCE for one in wanted
        ):
            found.append((min(one.distance(size_class) for one in wanted), -size_class.exponent, name))
    winners = (_winner(mlflow, campaign, topology, name) for _, _, name in sorted(found)[:MAX_MODELS])
    return list(dict.fromkeys(winner for winner in winners if winner is not None))


def family(spec: str) -> str:
    """Return the first word of a spec, of what it was before losses: `torus` of torus:4x4 and without(torus:4x4;…)."""
    while (whole := _DEGRADED.match(spec)) is not None:
        spec = spec[whole.end() :]
    return re.split(r"[:(]", spec, maxsplit=1)[0]


def degree(topology: Topology) -> int:
    """Return the number of links out of the compute node that has most."""
    sources = np.bincount(topology.links.src, minlength=topology.compute_count)
    return int(sources[: topology.compute_count].max())


def _winner(mlflow: MlflowStore, campaign: Campaign, topology: Topology, name: str) -> Candidate | None:
    """Return the candidate behind the alias of a model; None, with a warning, for one that cannot be read."""
    version = mlflow.aliased(name, campaign.register_.alias)
    if version is None:
        return None
    try:
        manifest: dict[str, Any] = json.loads(mlflow.download(version)[MANIFEST_FILE])
        if manifest.get("library") is not None or degree(load_topology(manifest["topology"]["spec"])) != degree(
            topology
        ):
            return None
        return _candidates.validate_python(manifest["parameters"])
    except (ChoraleError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s says nothing to begin with: %r", name, error)
        return None
