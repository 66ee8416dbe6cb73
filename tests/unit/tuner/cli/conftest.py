"""Schedules and programs that commands have made."""

import pytest

from tests.command import chorale


@pytest.fixture
def schedule(capsys, tmp_path):
    def make(method="bfb", spec="hypercube:3", collective="allreduce", suffix="parquet"):
        path = tmp_path / f"{method}.{suffix}"
        assert chorale(capsys, "synth", method, spec, "--collective", collective, "-o", path).code == 0
        return path

    return make


@pytest.fixture
def files(capsys, schedule):
    def make(method="bfb", spec="hypercube:3", collective="allreduce", target="msccl-xml"):
        path = schedule(method, spec, collective)
        program = path.with_suffix(".json" if target == "mscclpp-json" else ".xml")
        assert chorale(capsys, "lower", path, "--target", target, "-o", program).code == 0
        return path, program

    return make
