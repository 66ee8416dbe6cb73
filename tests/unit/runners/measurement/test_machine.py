"""The machine: facts that times depend on, and a lock with one holder, and none after its death."""

import getpass
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chorale.runners.measurement.machine import environment_id, exclusive, machine_facts
from chorale.synth.errors import Unavailable


def test_the_facts_say_what_times_depend_on_and_nothing_names_the_host() -> None:
    facts = machine_facts()
    assert {"cpu_model", "cores", "kernel", "architecture", "python", "numpy", "clock_source", "governor"} == set(facts)
    texts = [str(value) for value in facts.values()]
    assert not [name for name in (os.uname().nodename, getpass.getuser()) if name in texts]


def test_the_clock_source_is_what_the_kernel_says_or_none() -> None:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    assert machine_facts()["clock_source"] == (path.read_text().strip() if path.exists() else None)


def test_the_same_machine_has_the_same_id() -> None:
    facts = machine_facts()
    assert environment_id(facts) == environment_id(machine_facts())
    assert environment_id(facts) != environment_id({**facts, "governor": "another"})


HOLD = "import sys, time\nfrom pathlib import Path\nfrom chorale.runners.measurement.machine import exclusive\n"
HOLD += "with exclusive(Path(sys.argv[1]), 1): print('held', flush=True); time.sleep(60)"


def test_one_holds_it_and_death_frees_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match="another measurement is running on this machine"), exclusive(lock, 0.2):
            pass
        holder.kill()
        with exclusive(lock, 10.0):
            pass


def test_it_is_free_after_the_block_and_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock", 0):
        raise ZeroDivisionError
    with exclusive(tmp_path / "lock", 0):
        pass


def test_one_who_measures_again_and_again_lets_another_in(tmp_path: Path) -> None:
    lock, done, rounds = tmp_path / "lock", threading.Event(), []

    def first() -> None:
        while not done.is_set():
            with exclusive(lock, 60.0):
                rounds.append(1)
                done.wait(0.1)

    other = threading.Thread(target=first)
    other.start()
    while not rounds:
        time.sleep(0.01)
    try:
        for _ in range(3):
            before = len(rounds)
            with exclusive(lock, 20.0):
                assert len(rounds) - before <= 3
    finally:
        done.set()
        other.join()


def test_what_cannot_be_a_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the lock file cannot be written"), exclusive(tmp_path, 0):
        pass
