"""Rows of the shards of the first ranks, before they are packed into a schedule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology


class BaseRows(NamedTuple):
    """Columns as in `chorale.synth.schedule.schedule.Transfers`, int64, over `routes`."""

    step: Integers
    route: Integers
    shard: Integers
    lo: Integers
    hi: Integers
    routes: Routes

    @property
    def steps(self) -> int:
        """The height of the trees."""
        return int(self.step.max(initial=-1)) + 1

    def loads(self, topology: Topology) -> Integers:
        """Return int64 per link: units of all rows. O(hops of all rows)."""
        of_route = np.zeros(len(self.routes), dtype=np.int64)
        np.add.at(of_route, self.route, self.hi - self.lo)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        np.add.at(loads, self.routes.link_ids, np.repeat(of_route, np.diff(self.routes.offsets)))
        return loads
