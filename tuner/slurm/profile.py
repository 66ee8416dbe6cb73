"""The profile of a site: what every job there has to say to Slurm, in a YAML file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from chorale.synth.errors import InvalidInput
from chorale.tuner.config.values import CampaignSection
from chorale.tuner.files.read_write import read_file

PROFILE_VARIABLE = "CHORALE_SLURM"
"""Names the file of the profile where a command does not."""

_DURATION = re.compile(r"(\d+)(s|min|h|d)")
_UNIT_MINUTES = {"s": 1 / 60, "min": 1, "h": 60, "d": 24 * 60}
_SLURM_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")


def slurm_time(value: Any) -> Any:
    """Return a time limit as Slurm takes it: 90, 1:30:00 and 1-00:00 stay, 90min, 2h and 1d become minutes."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return str(max(1, round(int(match[1]) * _UNIT_MINUTES[match[2]])))
    return value


def limit_minutes(text: str) -> float:
    """Return the minutes of a limit in the form of Slurm: MIN, MIN:SEC, H:MIN:SEC, D-H, D-H:MIN or D-H:MIN:SEC."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (60.0, 1.0, 1 / 60) if dash or len(parts) == 3 else (1.0, 1 / 60)
    return 24 * 60.0 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _is_time(value: str) -> str:
    if not _SLURM_TIME.fullmatch(value):
        raise ValueError("a time limit is written as 90min, 2h, 1d or as Slurm does, such as 1-12:00:00")
    return value


def _is_one_line(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("the value should be one line of text")
    return value


def _is_word(value: str) -> str:
    if re.search(r"\s", _is_one_line(value)):
        raise ValueError("the value should be one word")
    return value


Word = Annotated[str, AfterValidator(_is_word)]
Line = Annotated[str, AfterValidator(_is_one_line)]
TimeLimit = Annotated[str, BeforeValidator(slurm_time), AfterValidator(_is_time)]


class Container(CampaignSection):
    """What commands of a job run in: with pyxis a container of srun, with Apptainer `apptainer exec`."""

    kind: Literal["pyxis", "apptainer"] = Field(description="Who starts it.")
    image: Word = Field(description="Image, as its program takes it.")
    mounts: list[Word] = Field(default=[], description="Folders to mount, as FOLDER or FOLDER:INSIDE.")
    options: list[Word] = Field(default=[], description="Further options, such as --nv.")

    @property
    def srun_options(self) -> list[str]:
        """What srun is told, nothing where it has no part in it."""
        if self.kind != "pyxis":
            return []
        mounts = [f"--container-mounts={','.join(_both_sides(mount) for mount in self.mounts)}"] if self.mounts else []
        return [f"--container-image={self.image}", *mounts, *self.options]

    @property
    def prefix(self) -> list[str]:
        """What stands before a command, nothing where srun starts the container."""
        if self.kind != "apptainer":
            return []
        return ["apptainer", "exec", *(f"--bind={mount}" for mount in self.mounts), *self.options, self.image]


def _both_sides(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"


class SlurmProfile(CampaignSection):
    """What jobs of a site say to Slurm. Without a value Slurm's own default holds."""

    partition: Word | None = Field(default=None, description="Partition.")
    account: Word | None = Field(default=None, description="Account.")
    time: TimeLimit | None = Field(default=None, description="Time limit: 90min, 2h, 1d, or as Slurm writes it.")
    constraint: Word | None = Field(default=None, description="Features that nodes must have.")
    nodes: int | None = Field(default=None, ge=1, description="Nodes; by default what the runner needs.")
    tasks_per_node: int | None = Field(default=None, ge=1, description="Tasks of a node; by default its ranks.")
    gpus_per_node: int | None = Field(
        default=None, ge=0, description="GPUs of a node; by default its ranks with msccl, else none. 0 asks for none."
    )
    sbatch: list[Line] = Field(default=[], description="Further options of sbatch, such as --qos=short.")
    srun: list[Word] = Field(default=[], description="Further options of the sruns of the script, such as --cpu-bind.")
    prologue: list[Line] = Field(default=[], description="Lines before everything, such as module load nccl.")
    container: Container | None = Field(default=None, description="Container in which commands run.")
    command: Word | None = Field(default=None, description="chorale on the nodes; by default the path of this one.")
    ray: bool | None = Field(default=None, description="Bring Ray up on all nodes; by default where it is needed.")
    ray_options: list[Word] = Field(default=[], description="Further options of `ray start`.")
    requeue_at_most: int = Field(default=20, ge=0, description="How often a campaign that did not end may requeue.")
    stop_s: int = Field(default=120, ge=10, description="Seconds before the end of the job for stopping in order.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for option in self.sbatch:
            if not option.startswith("-"):
                raise ValueError(f"`sbatch` should hold options, which begin with `-`: {option}")
        if self.time is not None and 60 * limit_minutes(self.time) < 2 * self.stop_s:
            raise ValueError(f"`time` should be at least twice the {self.stop_s} s of `stop_s`: {self.time}")
        return self

    def requests(self) -> list[str]:
        """Return the options of sbatch that do not depend on what runs."""
        named = {
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "constraint": self.constraint,
        }
        return [*(f"--{name}={value}" for name, value in named.items() if value is not None), *self.sbatch]


def load_profile(path: str | None, **changes: Any) -> SlurmProfile:
    """Return the profile in the YAML file at `path`, by default the one that `PROFILE_VARIABLE` names, if any.

    changes: values in place of the file's, where they are not None
    Raises InvalidInput for anything that does not fit.
    """
    path = path or os.environ.get(PROFILE_VARIABLE) or None
    document: Any = {}
    if path is not None:
        try:
            document = yaml.safe_load(read_file(path).decode(errors="replace")) or {}
        except yaml.YAMLError as error:
            raise InvalidInput("a profile of a site must be valid YAML", error, f"repair {path}") from None
    if not isinstance(document, dict):
        raise InvalidInput("a profile of a site must be a mapping of keys to values", path, "write `partition: gpu`")
    document |= {name: value for name, value in changes.items() if value is not None}
    try:
        return SlurmProfile.model_validate(document)
    except ValidationError as error:
        fault = error.errors()[0]
        keys = ".".join(map(str, fault["loc"])) or "profile"
        known = ", ".join(SlurmProfile.model_fields)
        rule = f"key `{keys}` of the profile of a site: {fault['msg'].removeprefix('Value error, ')}"
        raise InvalidInput(rule, fault["input"], f"known keys: {known}") from None


def this_command() -> str:
    """Return the command of this installation, which nodes that share its folder can run."""
    beside = Path(sys.executable).parent / "chorale"
    return str(beside) if beside.exists() else "chorale"
