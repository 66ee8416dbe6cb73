"""Words that kernels write and compare: pieces of text as bytes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.columns import Column, ends_of

Bytes = NDArray[np.uint8]

ZERO, NINE, MINUS = b"09-"
BASE = 10


class Words(NamedTuple):
    """Word number i is `text[first[i]:first[i + 1]]`."""

    text: Bytes
    first: Column


def words_of(texts: Sequence[str]) -> Words:
    """Return `texts`, which are ASCII, as words."""
    joined = np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)
    return Words(joined, ends_of(list(map(len, texts))))
