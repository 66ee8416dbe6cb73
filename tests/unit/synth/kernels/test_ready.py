"""A group of kernels is run once for one state of the sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chorale.synth.kernels import ready, warm_up


def test_a_group_runs_once_until_a_source_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    sources, machine_code, runs = tmp_path / "sources", tmp_path / "code", []
    sources.mkdir()
    machine_code.mkdir()
    source = sources / "kernel.py"
    source.write_text("x = 1")
    monkeypatch.setattr(ready, "_SOURCES", sources)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(machine_code))
    monkeypatch.setattr(warm_up, "warm_finder", lambda: runs.append(1) or len(runs))
    ready._state.cache_clear()
    assert [ready.compile_groups("warm_finder") for _ in range(2)] == [1, 0]
    os.utime(source, ns=(1, 1))
    ready._state.cache_clear()
    assert [ready.compile_groups("warm_finder") for _ in range(2)] == [2, 0]
    ready._state.cache_clear()


def test_trees_and_exchanges_are_compiled_for_methods_that_use_them_only():
    assert ready.groups_of_method("bfb") == ("warm", "warm_bounds")
    assert "warm_trees" in ready.groups_of_method("forest")
    assert ready.groups_of_method("auto") == (*ready.groups_of_method("forest"), "warm_exchange")
