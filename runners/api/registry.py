"""Finds runners by name and creates them with command-line options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chorale.runners.api.base import Runner
from chorale.runners.api.config import RunnerConfig, TimeSource
from chorale.runners.device.config import DeviceConfig
from chorale.runners.local.config import LocalConfig
from chorale.runners.mpi.config import MpiConfig
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.nccl.config import NcclConfig
from chorale.runners.oneccl.config import OneCclConfig
from chorale.runners.recorded.config import RecordedConfig
from chorale.runners.simulated.config import SimulatedConfig
from chorale.synth.errors import InvalidInput
from chorale.synth.names import name_among

_DECLARED: tuple[type[RunnerConfig], ...] = (
    *(LocalConfig, SimulatedConfig, RecordedConfig, OneCclConfig, MpiConfig, NcclConfig, DeviceConfig, MscclConfig),
)
RUNNERS: Mapping[str, type[RunnerConfig]] = {runner.name: runner for runner in _DECLARED}

_ALIASES = {"sim": "simulated", "simulator": "simulated", "rccl": "nccl"} | dict.fromkeys(
    ("mpich", "openmpi", "mpirun"), "mpi"
)


def runner_named(text: str) -> str:
    """Return the name of the runner to which `text` refers. Raises UnknownName if there is none."""
    return name_among("runner", text, RUNNERS, _ALIASES)


def runner_config(name: str, options: Mapping[str, Any] | None = None) -> RunnerConfig:
    """Return the runner configuration for `name` with `options` (values or text; None means the default).

    Raises InvalidInput for an unknown name or option, and for a value that an option does not accept.
    """
    declared = RUNNERS[runner_named(name)]
    given = {option: value for option, value in (options or {}).items() if value is not None}
    unknown = [option for option in given if option not in declared.model_fields]
    if unknown:
        way_out = f"its options are {', '.join(declared.model_fields)}"
        raise InvalidInput(f"the {name} runner has no option '{{}}'", unknown[0], way_out)
    try:
        return declared.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        option = str(fault["loc"][0])
        message = fault["msg"].removeprefix("Value error, ").replace("Input should", "the value should", 1)
        rule = f"the option {option} of the {declared.name} runner: {message}"
        raise InvalidInput(rule, fault["input"], f"{option}: {declared.model_fields[option].description}") from None


def create_runner(name: str, options: Mapping[str, Any] | None = None, home: Path | None = None) -> Runner:
    """Return a new runner, which the caller must close. See `runner_config`, and `RunnerConfig.create` for `home`."""
    return runner_config(name, options).create(home)


def is_simulated(runner: str | None) -> bool:
    """Return whether times of the runner called `runner` come from a model instead of measurements."""
    return runner is not None and runner in RUNNERS and RUNNERS[runner].capabilities.times is TimeSource.MODEL


def runner_text(runner: str) -> str:
    """Return the runner's name for people, with a note if its times are simulated."""
    return f"{runner} runner" + (": these times are simulated, not measured" if is_simulated(runner) else "")
