"""Facts about the machine: those that times depend on, and none that names the host."""

import getpass
import os
from pathlib import Path

from chorale.runners.measurement.machine import environment_id, machine_facts


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
