"""Notices that a launch is measured on other nodes than before: times of two sets of nodes do not compare."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from chorale.tuner.trials.records import CompleteTrial, TrialRecord

NODES = "nodes"
_log = logging.getLogger("chorale.controller")


class NodeWatch:
    """Knows on which nodes the last trial of a launch was measured, where its runner says so.

    is_off: where several workers measure at once, each on nodes of its own
    """

    def __init__(self, trials: Iterable[TrialRecord], is_off: bool = False) -> None:
        measured = [trial.environment.get(NODES) for trial in trials if isinstance(trial, CompleteTrial)]
        self._nodes = measured[-1] if measured else None
        self._is_off = is_off

    def have_changed(self, environment: Mapping[str, Any]) -> bool:
        """Take note of the nodes of a measurement; return, with a warning, whether the one before had others."""
        nodes, before = environment.get(NODES), self._nodes
        if nodes is None or self._is_off:
            return False
        self._nodes = nodes
        if before is None or before == nodes:
            return False
        _log.warning("measured on %s, before on %s: the baselines are measured again there", nodes, before)
        return True
