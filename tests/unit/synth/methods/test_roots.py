"""A root that is no rank is refused by every method that has roots."""

import pytest

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import METHODS, synthesize
from chorale.synth.topology.spec import parse_topology

ROOTED = [
    (method, name)
    for method in METHODS
    for name in (CollectiveName.BROADCAST, CollectiveName.REDUCE)
    if name in METHODS[method].collectives
]


@pytest.mark.parametrize(("method", "name"), ROOTED, ids=str)
@pytest.mark.parametrize("root", [-1, 4, 99])
def test_a_root_that_is_no_rank(method: str, name: CollectiveName, root: int) -> None:
    with pytest.raises(InvalidInput, match="is not a rank"):
        synthesize(method, parse_topology("hypercube:2"), Collective(name, root), None, SerialExecutor())
