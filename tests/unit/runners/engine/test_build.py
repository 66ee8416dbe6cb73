"""Native code is built once for each content, whoever asks and whoever else builds."""

import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runners.engine import build
from chorale.runners.engine.build import LOCK, LOG, NativeTarget, build_native, native_folder, shipped_file
from chorale.runners.measurement.private_files import temporary_folder
from chorale.synth.errors import Unavailable

GOOD = '#include "value.hpp"\nint main() { return VALUE; }\n'


@pytest.fixture
def target(tmp_path: Path) -> NativeTarget:
    """Return a program that ends with 3; one of its headers lies in another folder."""
    (tmp_path / "program.cpp").write_text(GOOD)
    (tmp_path / "value.hpp").write_text('#include "number.hpp"\n#define VALUE NUMBER\n')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "number.hpp").write_text("#define NUMBER 3\n")
    return NativeTarget("program", (tmp_path / "program.cpp",), (), (tmp_path / "other",))


def result(path: Path) -> int:
    return subprocess.run([path], check=False).returncode


def test_built_once(target: NativeTarget, tmp_path: Path) -> None:
    path = build_native(target, tmp_path / "home")
    before = path.stat().st_mtime_ns
    assert build_native(target, tmp_path / "home") == path
    assert path.stat().st_mtime_ns == before
    assert result(path) == 3
    assert "program.cpp" in (path.parent / LOG).read_text()
    path.unlink()  # a build that was broken off is no build
    assert result(build_native(target, tmp_path / "home")) == 3


def test_built_again_after_a_change_of_any_file_or_flag(target: NativeTarget, tmp_path: Path) -> None:
    built = [build_native(target, tmp_path / "home")]
    for file, text in (("other/number.hpp", "#define NUMBER 5\n"), ("value.hpp", "#define VALUE 6\n")):
        (tmp_path / file).write_text(text)
        built.append(build_native(target, tmp_path / "home"))
    (tmp_path / "program.cpp").write_text("int main() { return CODE; }\n")
    built.append(build_native(NativeTarget(target.name, target.sources, ("-DCODE=7",)), tmp_path / "home"))
    built.append(build_native(NativeTarget(target.name, target.sources, ("-DCODE=8",)), tmp_path / "home"))
    assert [result(each) for each in built] == [3, 5, 6, 7, 8]


def test_of_processes_that_build_at_once_one_does(
    target: NativeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) echo "$@" >> {calls}; sleep 0.5;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    script = (
        "import sys; from pathlib import Path; from chorale.runners.engine.build import NativeTarget, build_native; "
        "source, home, other = map(Path, sys.argv[1:]); "
        "print(build_native(NativeTarget('program', (source,), (), (other,)), home))"
    )
    command = [sys.executable, "-c", script, *map(str, (target.sources[0], tmp_path / "home", tmp_path / "other"))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    (path,) = paths
    assert result(Path(path.strip())) == 3
    assert {file.name for file in Path(path.strip()).parent.iterdir()} - {LOCK} == {LOG, "program"}
    assert len(calls.read_text().splitlines()) == 1


def test_code_is_kept_in_a_cache_of_this_user(
    target: NativeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the data folder is not run: others may have made it. Nor is a cache that others can write to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "deep" / "cache"))
    path = build_native(target)
    assert path.is_relative_to(tmp_path / "deep" / "cache" / "chorale" / "native")
    assert (tmp_path / "deep" / "cache" / "chorale").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "program.cpp"))  # no folder
    assert native_folder() == temporary_folder() / "native"


def test_what_cannot_be_built_is_said_with_the_reason(
    target: NativeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.cpp").write_text("int main() { return nothing; }\n")
    with pytest.raises(Unavailable, match="native code could not be built") as failure:
        build_native(target, tmp_path / "home")
    (log,) = (tmp_path / "home").rglob(LOG)
    assert str(log) in str(failure.value)
    assert "nothing" in log.read_text()
    (tmp_path / "program.cpp").write_text(GOOD)
    assert result(build_native(target, tmp_path / "home")) == 3
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="Not a directory; set XDG_CACHE_HOME"):
        build_native(target, tmp_path / "file")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="CXX=no-such-compiler"):
        build_native(target, tmp_path / "home")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"there is no C\+\+ compiler, which builds the engine: none of"):
        build_native(target, tmp_path / "home")


def test_what_a_wheel_brings_needs_no_compiler(
    target: NativeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken where it is of these sources, and where the user does not choose a compiler."""
    shipped = shipped_file(target, tmp_path / "shipped")
    shipped.parent.mkdir(parents=True)
    shipped.write_text("built into the wheel")
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "COMPILERS", ())
    assert build_native(target, tmp_path / "home") == shipped
    monkeypatch.setenv("CXX", "c++")
    assert result(build_native(target, tmp_path / "home")) == 3
    monkeypatch.delenv("CXX")
    (tmp_path / "value.hpp").write_text("#define VALUE 5\n")
    with pytest.raises(Unavailable):
        build_native(target, tmp_path / "home")
