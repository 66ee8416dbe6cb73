from __future__ import annotations

import pytest

from runners.registry import create_runner
from synth.errors import InvalidInput


@pytest.mark.parametrize("name", ["local", "simulated"])
def test_a_runner_has_the_name_it_is_created_by(name: str) -> None:
    runner = create_runner(name, {"link_mbps": 50})
    assert runner.name == name
    runner.close()


def test_unknown_names_and_options_are_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidInput, match="must be one that is known; got quantum; choose from local, simulated"):
        create_runner("quantum")
    with pytest.raises(InvalidInput, match="must be one it has; got speed; use link_mbps, alpha_us, link_latency_us"):
        create_runner("simulated", {"speed": 1})
