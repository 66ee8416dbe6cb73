"""What a user hears where no fabric can be made."""

import os
import shutil
import subprocess

import pytest

from chorale.runners.fabric import fabric as holder
from chorale.runners.fabric.fabric import NamespaceHolder, enter_command
from chorale.synth.errors import Unavailable


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
        "a fabric needs network namespaces; got no user namespaces; "
        "allow unprivileged user namespaces in the kernel, or use root (in a container: with CAP_SYS_ADMIN)"
    )


def test_root_hears_of_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, 0)
    with pytest.raises(Unavailable, match="got no user namespaces; no rights; allow"):
        NamespaceHolder("x")


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    with pytest.raises(Unavailable, match="got no tc; install iproute2 and util-linux"):
        NamespaceHolder("x")


def test_only_user_namespaces_are_entered_with_their_user() -> None:
    assert enter_command(7, False, "--net") == ("nsenter", "--target=7", "--net")
    assert enter_command(7, True, "--net") == (
        "nsenter", "--target=7", "--user", "--preserve-credentials", "--net",
    )  # fmt: skip
