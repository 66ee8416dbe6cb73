"""Programs in every language with a compiler here run under the preloaded library of the MPI that is there."""

import pytest

from tests.live.job.mpi_languages import main


@pytest.mark.timeout(300)
def test_calls_are_served_counted_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "'allreduce: call that does not wait for its result'" in said
    assert "'allreduce: group not in the table': 1" in said
