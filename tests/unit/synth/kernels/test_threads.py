"""Parts that threads compute come in order; what one of them raises is raised."""

import pytest

from chorale.synth.kernels import threads
from chorale.synth.kernels.threads import in_threads


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_results_come_in_the_order_of_the_parts(cores, monkeypatch):
    monkeypatch.setattr(threads, "core_count", lambda: cores)
    assert in_threads(lambda part: part * part, range(50)) == [part * part for part in range(50)]
    assert in_threads(lambda part: part, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda part: 1 / (5 - part), range(50))
