"""How many random cases a property is tried on: few in `make test`, its own number in `make test-all`."""

import os

from hypothesis import settings

FEW = 15
"""Of every property in `make test`, or fewer where it says so: more would make people wait, and seldom find more."""

DEFAULT = int(os.environ.get("CHORALE_EXAMPLES", FEW))
"""Of each property that does not say how many. Where the variable is set, the others take the number that they say."""


def random_cases(count: int) -> settings:
    """Return the decorator of a property that deserves this many, or more than the usual number is too slow for."""
    return settings(max_examples=count if "CHORALE_EXAMPLES" in os.environ else min(count, FEW))
