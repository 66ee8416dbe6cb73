"""`chorale fabric`: how it refuses, before it touches the kernel. What it does is tested in tests/live."""

from pathlib import Path

import pytest

from tests.command import chorale


@pytest.fixture(autouse=True)
def _no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_without_tools_it_is_unavailable(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    done = chorale(capsys, "fabric", "up", "ring:3", "--link-mbps", "5", "--name", "never", *options)
    assert done.code == 3
    assert "install iproute2" in done.stderr


def test_what_is_not_up_can_be_taken_down(capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "fabric", "down", "never", "--json")
    assert (done.code, done.document) == (0, {"down": []})


def test_nothing_runs_in_what_is_not_up(capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "fabric", "exec", "--name", "never", 0, "--", "true")
    assert done.code == 2
    assert "the fabric never is not up" in done.stderr
