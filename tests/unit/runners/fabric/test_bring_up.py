"""What a user hears where no fabric can be made, or where the machine does not carry its rates."""

import os
import shutil
import subprocess
from contextlib import nullcontext
from fractions import Fraction
from unittest.mock import Mock

import pytest

from chorale.runners.fabric import fabric as holder, self_test
from chorale.runners.fabric.fabric import EmulatedFabric, NamespaceHolder, enter_command
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.self_test import Exchange, Spans, bring_up, measured_efficiency
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology


def _refused(reason: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = ["sh", "-c", 'echo more >&2; echo "$0" >&2; exit 1', reason]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.wait()
    return process


@pytest.mark.parametrize(
    ("uid", "reason", "way_out"),
    [
        (1000, "no user namespaces", "allow unprivileged user namespaces in the kernel, or use root"),
        (0, "no user namespaces; no rights", ""),
    ],
)
def test_a_user_hears_why_namespaces_do_not_work(
    monkeypatch: pytest.MonkeyPatch, uid: int, reason: str, way_out: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(holder, "_start", lambda _, user: _refused("no user namespaces" if user else "no rights"))
    with pytest.raises(Unavailable, match=f"network namespaces do not work here: {reason}; {way_out}") as refusal:
        NamespaceHolder("x")
    assert refusal.value.exit_code == 3


def test_a_missing_tool_is_named_and_only_user_namespaces_are_entered_with_their_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    with pytest.raises(Unavailable, match="a fabric needs the commands ip, tc, unshare, nsenter,"):
        NamespaceHolder("x")
    assert enter_command(7, False, "--net") == ("nsenter", "--target=7", "--net")
    assert enter_command(7, True, "--net") == (
        "nsenter", "--target=7", "--user", "--preserve-credentials", "--net",
    )  # fmt: skip


RING = parse_topology("ring:4")  # eight links


def _up(monkeypatch: pytest.MonkeyPatch, carried_mbps: int, link_mbps: int, **options: bool) -> EmulatedFabric:
    """Bring RING up on a machine that carries so many Mbit/s in all."""
    fabric = EmulatedFabric("x", RING.spec, RING.id, Fraction(link_mbps), 4, 0, 1, False, 1)
    holder = Mock()
    monkeypatch.setattr(self_test, "temporary_fabric", lambda *_: nullcontext((fabric, holder)))
    efficiency = min(1.0, carried_mbps / (len(RING.links) * link_mbps))
    monkeypatch.setattr(self_test, "measured_efficiency", lambda plan, fabric: efficiency)
    found = bring_up(RING, Fraction(link_mbps), "x", **options)
    holder.detach.assert_called_once_with(found.to_line())
    return found


@pytest.mark.parametrize(
    ("mbps", "options", "efficiency"),
    [(800, {}, 1.0), (8, {"force": True}, 0.01), (8, {"is_tested": False}, None)],
    ids=["what works", "what is forced", "what is not tested"],
)
def test_it_is_kept_with_its_result(
    mbps: int, options: dict[str, bool], efficiency: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _up(monkeypatch, mbps, 100, **options).efficiency == efficiency


def test_a_refusal_names_a_rate_that_works_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput) as refusal:
        _up(monkeypatch, 800, 1000)
    assert str(refusal.value) == (
        "all links of a fabric together must reach 70% of their rates on this machine, got 10% at 1000 Mbit/s; "
        "use --link-mbps 100, which this machine reached, or --force to bring it up anyway"
    )
    with pytest.raises(InvalidInput, match="use a lower --link-mbps, or --force"):
        _up(monkeypatch, 0, 100)


def test_the_efficiency_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_fabric(RING, Fraction(100), "x")

    def run(fabric: EmulatedFabric, exchanges: list[Exchange], limit_s: int) -> list[Spans]:
        return [
            {stream: (1.0, 1.0 + 1.25 * 8 * size / 1e8) for stream, size in sizes.items()} for _, sizes in exchanges
        ]

    monkeypatch.setattr(self_test, "run_exchanges", run)
    fabric = EmulatedFabric("x", RING.spec, RING.id, Fraction(100), 4, 0, 1, False, 1)
    assert measured_efficiency(plan, fabric) == pytest.approx(0.8, abs=0.03)
