"""What is held on disk is built once, read back as what was built, and never believed."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.build.build import CachingBuilder, build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.config.building import FOLDER, DiskCache, code_version, shared_builder, verified_from_cache

SOURCE = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "bfb")
RING = replace(SOURCE, method="ring")


def request(target: str = "oneccl-xml", source: ScheduleRequest = SOURCE) -> BuildRequest:
    return BuildRequest(source, LoweringOptions(target))


def builder(folder: Path, largest_bytes: int = 2**20, version: str = "1") -> CachingBuilder:
    return CachingBuilder(DiskCache(folder, version, largest_bytes))


def counts(one: CachingBuilder) -> tuple[int, int]:
    return one.synthesized, one.lowered


@pytest.mark.parametrize("target", ["oneccl-xml", "msccl-xml", "msccl-executor-xml"])
def test_another_process_finds_what_was_built(tmp_path: Path, target: str) -> None:
    first, second = builder(tmp_path), builder(tmp_path)
    built = first.build(request(target))
    assert isinstance(built, BuildResult)
    assert second.build(request(target)) == built == build(request(target))
    assert (counts(first), counts(second)) == ((1, 1), (0, 0))


def test_plans_are_built_again_from_the_schedule(tmp_path: Path) -> None:
    first, second = builder(tmp_path), builder(tmp_path)
    assert first.build(request("mscclpp-json")) == second.build(request("mscclpp-json"))
    assert counts(second) == (0, 1)


def test_other_code_builds_for_itself(tmp_path: Path) -> None:
    builder(tmp_path).build(request())
    other = builder(tmp_path, version="2")
    other.build(request())
    assert counts(other) == (1, 1)
    assert len(code_version()) == 64


@pytest.mark.parametrize("suffix", ["schedule", "program"])
@pytest.mark.parametrize("damage", ["empty", "flipped", "of another"])
def test_what_is_damaged_is_built_again(
    tmp_path: Path, suffix: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = builder(tmp_path).build(request())
    [path] = tmp_path.glob(f"*.{suffix}")
    content = bytearray(path.read_bytes())
    if damage == "of another":  # a sound schedule and a sound program of another network
        other = tmp_path / "other"
        builder(other).build(request(source=replace(SOURCE, topology=parse_topology("ring:5"))))
        [stranger] = other.glob(f"*.{suffix}")
        shutil.copy(stranger, path)
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(b"" if damage == "empty" else content)
    again = builder(tmp_path)
    assert again.build(request()) == built
    assert counts(again) == ((1, 0) if suffix == "schedule" else (0, 1))
    assert "is damaged and built again" in caplog.text


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    builder(tmp_path).build(request())
    size_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    bounded = builder(tmp_path, 2 * size_bytes)
    for depth in (2, 3, 4):
        bounded.build(request(source=replace(RING, depth=depth)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * size_bytes
    again = builder(tmp_path)
    again.build(request())
    assert counts(again) == (1, 1)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one = builder(tmp_path / "file")
    assert isinstance(one.build(request()), BuildResult)
    assert counts(one) == (1, 1)


@pytest.mark.parametrize("method", ["auto", "forest"])
def test_a_schedule_of_a_slow_method_is_synthesized_once(tmp_path: Path, method: str) -> None:
    source, stages = replace(SOURCE, method=method), list[str]()

    def observe(stage: str) -> AbstractContextManager[None]:
        stages.append(stage)
        return nullcontext()

    first, was_cached = verified_from_cache(source, tmp_path, SerialExecutor(), None, observe)
    assert (was_cached, stages) == (False, ["synthesis", "verification"])
    stages.clear()
    second, was_cached = verified_from_cache(source, tmp_path, SerialExecutor(), None, observe)
    assert (was_cached, stages) == (True, ["cache"])
    assert (second.schedule.id, second.cost) == (first.schedule.id, first.cost)
    [path] = (tmp_path / FOLDER).glob("*.schedule")
    path.write_bytes(b"damaged")
    assert not verified_from_cache(source, tmp_path, SerialExecutor())[1]
    assert verified_from_cache(source, tmp_path, SerialExecutor())[1]
    assert shared_builder(tmp_path).build(request(source=source)) == build(request(source=source))


@pytest.mark.parametrize("home", [None, Path("missing")])
def test_without_a_data_home_everything_is_synthesized(tmp_path: Path, home: Path | None) -> None:
    folder = None if home is None else tmp_path / home
    for _ in range(2):
        assert not verified_from_cache(replace(SOURCE, method="forest"), folder, SerialExecutor())[1]
    assert list(tmp_path.iterdir()) == []


def test_fast_methods_are_not_stored(tmp_path: Path) -> None:
    assert not verified_from_cache(SOURCE, tmp_path, SerialExecutor())[1]
    assert list(tmp_path.iterdir()) == []


def test_commands_make_no_data_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shared_builder(home).build(request())
    assert not home.exists()
    home.mkdir()
    shared_builder(home).build(request())
    assert len(list((home / FOLDER).iterdir())) == 2
    again = shared_builder(home)
    again.build(request())
    assert counts(again) == (0, 0)
