"""The element types that data can have in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from chorale.runners.data import EXACT_LIMIT, MAX_RANKS
from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ElementType:
    """dtype: how NumPy names it
    exact_limit: integers up to here are exact, so that sums over all ranks stay below
    max_ranks: of how many ranks the data still tell positions and ranks apart below that limit
    """

    dtype: np.dtype[Any]
    exact_limit: int
    max_ranks: int


ELEMENT_TYPES: Mapping[str, ElementType] = {
    "float32": ElementType(np.dtype(np.float32), EXACT_LIMIT, MAX_RANKS),
    "float64": ElementType(np.dtype(np.float64), EXACT_LIMIT, MAX_RANKS),
    "int32": ElementType(np.dtype(np.int32), EXACT_LIMIT, MAX_RANKS),
    "bfloat16": ElementType(np.dtype(ml_dtypes.bfloat16), 2**8, 16),
}


def element_bytes(name: str) -> int:
    """Return the size of an element of the type called `name`; InvalidInput for a type that is not known."""
    if name not in ELEMENT_TYPES:
        raise InvalidInput("the element type must be one that is known", name, f"use {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[name].dtype.itemsize
