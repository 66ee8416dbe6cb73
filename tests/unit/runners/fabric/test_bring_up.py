"""What a user hears where no fabric can be made, or where the machine does not carry its rates."""

import os
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from chorale.runners.fabric import fabric as holder
from chorale.runners.fabric import self_test
from chorale.runners.fabric.fabric import EmulatedFabric, NamespaceHolder, enter_command
from chorale.runners.fabric.links import FabricLinks, SelfTest
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.self_test import Exchange, Spans, bring_up_tested, run_self_test
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology


def _refused(reason: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = ["sh", "-c", 'echo more >&2; echo "$0" >&2; exit 1', reason]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.wait()
    return process


def _refuse(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(holder, "_start", lambda _, user: _refused("no user namespaces" if user else "no rights"))


def test_a_user_hears_why_user_namespaces_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, 1000)
    with pytest.raises(Unavailable) as refusal:
        NamespaceHolder("x")
    assert refusal.value.exit_code == 3
    assert str(refusal.value) == (
        "network namespaces do not work here: no user namespaces; "
        "allow unprivileged user namespaces in the kernel, or use root (in a container: with CAP_SYS_ADMIN)"
    )


def test_root_hears_of_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, 0)
    with pytest.raises(Unavailable, match="network namespaces do not work here: no user namespaces; no rights"):
        NamespaceHolder("x")


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    with pytest.raises(Unavailable, match="a fabric needs the commands ip, tc, unshare, nsenter,"):
        NamespaceHolder("x")


def test_only_user_namespaces_are_entered_with_their_user() -> None:
    assert enter_command(7, False, "--net") == ("nsenter", "--target=7", "--net")
    assert enter_command(7, True, "--net") == (
        "nsenter", "--target=7", "--user", "--preserve-credentials", "--net",
    )  # fmt: skip


RING = parse_topology("ring:4")  # eight links
WIRE = FabricLinks()


class Machine:
    """Carries so many Mbit/s in all."""

    def __init__(self, mbps: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mbps = mbps
        self.tested: list[float] = []
        monkeypatch.setattr(self_test, "run_self_test", self.test)
        monkeypatch.setattr(self_test, "bring_up", self.bring_up)

    def test(self, plan: FabricPlan, fabric: EmulatedFabric) -> SelfTest:
        self.tested.append(plan.bits_per_s / 8e6)
        return SelfTest(min(1.0, self.mbps * 1e6 / plan.bits_per_s), 1, 0, 0)

    def bring_up(
        self,
        topology: Topology,
        link_mbps: Fraction,
        name: str,
        latency_us: Fraction,
        test: Callable[[EmulatedFabric], EmulatedFabric],
    ) -> EmulatedFabric:
        return test(EmulatedFabric(name, topology.spec, topology.id, link_mbps, 4, 0, 1, False, 1, WIRE))


@pytest.mark.parametrize(
    ("mbps", "options", "efficiency"),
    [(800, {}, 1.0), (8, {"force": True}, 0.01)],
    ids=["what works", "what is forced"],
)
def test_it_is_kept_with_its_result(
    mbps: float, options: dict[str, Any], efficiency: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(mbps, monkeypatch)
    assert bring_up_tested(RING, Fraction(100), "x", **options).links.self_test == SelfTest(efficiency, 1, 0, 0)
    assert machine.tested == [100]


def test_a_refusal_names_a_rate_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(800, monkeypatch)
    with pytest.raises(InvalidInput) as refusal:
        bring_up_tested(RING, Fraction(1000), "x")
    assert str(refusal.value) == (
        "all links of a fabric together must reach 70% of their rates on this machine, got 10% at 1000 Mbit/s; "
        "take --link-mbps 100, which it carried, or --force to bring it up anyway"
    )
    assert machine.tested == [1000]


def test_a_hopeless_machine_gets_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(0, monkeypatch)
    with pytest.raises(InvalidInput, match="take a lower --link-mbps, or --force"):
        bring_up_tested(RING, Fraction(100), "x")


def test_speed_and_efficiency_are_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_fabric(RING, Fraction(100), "x")

    def run(fabric: EmulatedFabric, exchanges: list[Exchange], limit_s: int) -> tuple[list[Spans], float, float]:
        times = [
            {stream: (1.0, 1.0 + 1.25 * 8 * size / 1e8) for stream, size in sizes.items()} for _, sizes in exchanges
        ]
        return times, 0.5, 0.25

    monkeypatch.setattr(self_test, "run_exchanges", run)
    result = run_self_test(plan, EmulatedFabric("x", RING.spec, RING.id, Fraction(100), 4, 0, 1, False, 1, WIRE))
    assert result.efficiency == pytest.approx(0.8, abs=0.03)
    assert (result.link_cores, result.cores) == (0.25, 0.5)
