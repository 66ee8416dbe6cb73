"""Which ranks share a clock."""

from chorale.runners.measurement.clocks import SAME_CLOCK, clock_identity, same_clocks


def test_processes_of_one_machine_read_one_clock() -> None:
    assert clock_identity() == clock_identity()
    assert same_clocks([clock_identity()] * 3) == dict.fromkeys(range(3), SAME_CLOCK)


def test_ranks_elsewhere_need_an_alignment() -> None:
    assert same_clocks(["a", "b", "a", "c"]) == {0: SAME_CLOCK, 2: SAME_CLOCK}
