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


@pytest.mark.parametrize(
    ("spec", "rate", "name", "complaint"),
    [
        ("ring:2", "5", "never", "ring"),
        ("ring:3", "fast", "never", "the link rate (Mbit/s) must be a rational number"),
        ("ring:3", "0", "never", "between 0.1 and 100000 Mbit/s"),
        ("ring:300", "5", "never", "at most 256 nodes"),
        ("ring:3", "5", "no name", "the name of a fabric must be"),
    ],
)
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], spec: str, rate: str, name: str, complaint: str
) -> None:
    done = chorale(capsys, "fabric", "up", spec, "--link-mbps", rate, "--name", name)
    assert done.code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--latency-us", "-1"), "the latency of a link must be 0 to"),
        (("--loss", "0.9"), "the loss of a link must be 0 to 1/2"),
        (("--link", "0-2"), "write SRC-DST:mbps=R"),
        (("--link", "0-2:mbps=3"), "an override must be for a link of the topology; got 0-2"),
    ],
)
def test_bad_options_of_links_are_named(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], complaint: str
) -> None:
    done = chorale(capsys, "fabric", "up", "ring:4", "--link-mbps", "5", "--name", "never", *options)
    assert done.code == 2
    assert complaint in done.stderr


def test_what_is_not_up_can_be_taken_down(capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "fabric", "down", "never", "--json")
    assert (done.code, done.document) == (0, {"down": []})


def test_nothing_runs_in_what_is_not_up(capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "fabric", "exec", "--name", "never", 0, "--", "true")
    assert done.code == 2
    assert "a fabric must be up to run something in it; got never" in done.stderr
