"""Combinations of parameters that make no sense, known before anything runs."""

from __future__ import annotations

from synth.methods import METHODS
from tuner.campaigns.records import Candidate

METHODS_WITH_K = frozenset(name for name, method in METHODS.items() if "k" in method.options)
"""Methods that pack k trees per root."""

RUNNERS_WITH_PROTOCOLS: frozenset[str] = frozenset()
"""Runners on which the wire protocol changes anything; on the others it would only repeat a measurement."""


def reason_not_to_try(candidate: Candidate, runner: str) -> str | None:
    """Return in one line why `candidate` is pointless on `runner`, or None."""
    if candidate.k is not None and candidate.method not in METHODS_WITH_K:
        return f"{candidate.method} packs no trees, so k={candidate.k} means nothing"
    if candidate.protocol != "Simple" and runner not in RUNNERS_WITH_PROTOCOLS:
        return f"protocol {candidate.protocol} changes nothing on the {runner} runner"
    return None
