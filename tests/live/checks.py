"""The checks of the kits as parameters of live tests."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tests.conformance import live_kit, runner_kit

Check = Callable[..., None]

COMPARING: frozenset[Check] = frozenset({*live_kit.COMPARING, *runner_kit.COMPARING})


def params(
    checks: Sequence[Check], comparing: pytest.MarkDecorator, quick: Collection[Check] | None = None
) -> list[Any]:
    """Return parameters of `checks`: those that compare durations have the mark `comparing`, and those that are not
    among `quick`, where it is given, are slow.
    """
    return [
        pytest.param(
            check,
            id=check.__name__,
            marks=[
                *([comparing] if check in COMPARING else []),
                *([] if quick is None or check in quick else [pytest.mark.slow]),
            ],
        )
        for check in checks
    ]
