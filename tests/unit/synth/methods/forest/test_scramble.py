import numpy as np

from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.methods.forest.layered import shuffled_order


def test_numbers_stay_different_and_never_change() -> None:
    # The first outputs of SplitMix64 with seed 0, whose states are multiples of its constant.
    states = np.array([1, 2, 3], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert splitmix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert len(np.unique(splitmix(np.arange(10**5)))) == 10**5


def test_orders_are_permutations_that_depend_on_the_seed() -> None:
    orders = [shuffled_order(50, seed).tolist() for seed in range(4)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert shuffled_order(0, 3).tolist() == []
