"""How engines find one another."""

from __future__ import annotations

import pytest

from chorale.runners.engine.library import Engine, addresses_for, listen, own_address
from chorale.synth.errors import InvalidInput


def test_ranks_that_share_memory_use_it_and_others_tcp() -> None:
    of_all = [["here", "shm:a", "tcp:1"], ["there", "shm:b", "tcp:2"], ["here", "shm:c", "tcp:3"]]
    assert addresses_for(of_all[0], of_all) == ["shm:a", "tcp:2", "shm:c"]
    assert addresses_for(of_all[1], of_all) == ["tcp:1", "shm:b", "tcp:3"]


def test_two_engines_of_one_process_meet_by_shared_memory() -> None:
    engines = [Engine(rank, 2) for rank in range(2)]
    said = [listen(engine, "lo") for engine in engines]
    assert said[0][0] == said[1][0]
    assert all(tcp.startswith("tcp:127.0.0.1:") for _, _, tcp in said)
    assert all(address.startswith("shm:") for address in addresses_for(said[0], said))
    for engine in engines:
        engine.close()


def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert own_address("lo") == "127.0.0.1"
    with pytest.raises(InvalidInput, match=r"got nothing0; choose from .*lo"):
        own_address("nothing0")
