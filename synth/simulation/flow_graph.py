"""Messages and what they wait for: the input of the flow-level simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.routes import Routes

Indices = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class MessageGraph:
    """Messages over routes, gates between them.

    amount:  what each message carries, in any unit that the caller scales to bytes
    route:   the route of each message
    gates:   how many gates there are; a gate opens once everything that helps it has happened
    cause, effect: what happening helps what. Causes: gate g opens: g; message m has left its sender: gates + m; it
             has arrived: gates + messages + m. Effects: gate g: g; message m starts: gates + m (exactly one cause).
    """

    routes: Routes
    route: Indices
    amount: Indices
    gates: int
    cause: Indices
    effect: Indices

    @property
    def messages(self) -> int:
        return len(self.amount)
