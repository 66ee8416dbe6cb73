"""The kinds of networks that ranks can be told to run on."""

from __future__ import annotations

from chorale.synth.errors import InvalidInput

FABRIC, CLUSTER, LOOPBACK = "fabric", "cluster", "loopback"
NETWORK_KINDS = (FABRIC, CLUSTER, LOOPBACK)


def require_network_kind(where: str | None) -> None:
    """Raise InvalidInput unless `where` is one of KINDS, or None for whichever there is."""
    if where not in (None, *NETWORK_KINDS):
        raise InvalidInput("a place to run must be one that is known", where, f"choose from {', '.join(NETWORK_KINDS)}")
