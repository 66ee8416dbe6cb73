"""List scheduling of transfers over links, as machine code: each free link takes the longest remaining path first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lowering.vector_layout import Column

NO_ROW = -1


class Moves(NamedTuple):
    """What rows need of links: row i keeps each of `links[first[i] : end[i]]` busy for `chunks[i]` times its weight."""

    chunks: Column
    first: Column
    end: Column
    links: NDArray[np.int32]
    weight: Column


class Visits(NamedTuple):
    """What rows need of one another. A row visits the cells of its chunks at both its ends; the visits of row i are
    `first[i]` to `first[i + 1] - 1`. Those that a cell gets in a row, all to write or all to read, are a run; runs of a
    cell follow one another.

    run:       which run each visit belongs to
    rows:      the rows of all runs, run by run; those of run r begin at `run_first[r]`
    is_last:   1 for the last run of each cell
    """

    first: Column
    run: Column
    rows: Column
    run_first: Column
    is_last: NDArray[np.int8]
