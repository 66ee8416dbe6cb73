from __future__ import annotations

import pytest

from runners.registry import NOT_BUILT, create_runner
from synth.errors import InvalidInput, Unavailable


@pytest.mark.parametrize("name", ["local", "simulated"])
def test_a_runner_has_the_name_it_is_created_by(name: str) -> None:
    runner = create_runner(name, {"link_mbps": 50})
    assert runner.name == name
    runner.close()


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_runner_of_a_later_version_is_unavailable(name: str) -> None:
    with pytest.raises(Unavailable, match=f"must be part of this version; got {name} "):
        create_runner(name)


def test_unknown_names_and_options_are_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidInput, match="must be one that is known; got quantum; choose from local, simulated"):
        create_runner("quantum")
    with pytest.raises(InvalidInput, match="must be one it has; got speed; use link_mbps, alpha_us, link_latency_us"):
        create_runner("simulated", {"speed": 1})
