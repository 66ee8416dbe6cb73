"""Parses the values of a campaign file: lists and ranges, names in common spellings, addresses that may contain a
password, program files that are used unchanged, and the section `runner`, which says where programs are measured.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from chorale.job.files import read_file
from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.config import FROM_REQUESTS, SERVER_ONLY, Capabilities, MeasurerRequest, RunnerConfig
from chorale.runners.api.registry import RUNNERS, runner_named
from chorale.runners.api.units import MAX_SIZE_BYTES, parse_sizes
from chorale.runners.local.config import LocalConfig
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput, Unavailable, UnknownName
from chorale.synth.methods.catalog import method_named
from chorale.synth.redaction import is_hidden, redacted
from chorale.synth.targets.xml_text import MAX_TEXT_BYTES

REVEALED = {"reveal": True}
"""Context for `model_dump` that reveals passwords, for documents that only go to other processes of the user."""
Model = TypeVar("Model", bound=BaseModel)
MAX_VALUES = 1000
Size = Annotated[int, Field(ge=1, le=MAX_SIZE_BYTES)]
PATIENCE_S = 1.5
_OPTUNA = frozenset({"studies", "trials", "study_directions"})
_MLFLOW = frozenset({"experiments", "runs", "alembic_version"})
DEFAULT_KIND = LocalConfig.name


@dataclass(frozen=True, slots=True)
class Address:
    """An address whose password is shown as `***` in messages and in JSON."""

    _secret: str = field(repr=False)

    def reveal(self) -> str:
        return self._secret

    def __str__(self) -> str:
        return redacted(self._secret)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        text = core_schema.no_info_after_validator_function(cls, core_schema.str_schema())
        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.union_schema(
                [core_schema.is_instance_schema(cls), text],
                custom_error_type="address",
                custom_error_message="Input should be text, such as the address of a server",
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(
                _serialized, info_arg=True, return_schema=core_schema.str_schema(), when_used="unless-none"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, handler: Any) -> Any:
        return handler(core_schema.str_schema())


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a service on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def with_password(address: str, variable: str) -> str:
    """Return `address` with its password, which is taken from the environment if `address` was stored without it.

    Raises Unavailable if the environment variable `variable` does not contain this address with a password.
    """
    if not is_hidden(address):
        return address
    known = os.environ.get(variable, "")
    if redacted(known) != address:
        rule = "the password of {} is not stored"
        raise Unavailable(
            rule, address, f"set {variable} to the address with its password, or name the campaign file again"
        )
    return known


def _serialized(address: Address | str, info: SerializationInfo) -> str:
    """Return the address as text, with its password only if the serialization context is `REVEALED`."""
    whole = address.reveal() if isinstance(address, Address) else address
    return whole if info.context == REVEALED else redacted(whole)


def _spelled(read: Callable[[str], str]) -> Callable[[Any], Any]:
    """Return a function that normalizes a name with `read`, but leaves an unknown name unchanged for a later check."""

    def text(value: Any) -> Any:
        try:
            return read(value) if isinstance(value, str) else value
        except UnknownName:
            return value

    return text


collective_text = _spelled(lambda text: parse_collective(text).name.value)
method_text = _spelled(lambda text: method_named(text).name)
runner_text = _spelled(runner_named)


Value = str | int | None
"""A parameter value in the search space."""


class Strict(BaseModel):
    """Base class of pydantic models for user input. Unknown keys and infinities are errors; instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def validated(model: type[Model], document: Any, rule: str, way_out: str, prefix: str = "") -> Model:
    """Return `document` as an instance of `model`. Raises InvalidInput(rule, the first wrong key, way_out).

    prefix: text before the key in the error, such as the name of a file
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InvalidInput(rule, f"{prefix}{key}: {first['msg']}", way_out) from error


class Range(Strict):
    """A series of whole numbers from `from` to `to`; each is the previous one plus `step` or times `factor`."""

    model_config = ConfigDict(populate_by_name=True)

    first: int = Field(alias="from", ge=1)
    """First value."""
    last: int = Field(alias="to", ge=1)
    """Last value; included if a step ends on it."""
    step: int | None = Field(default=None, ge=1)
    """Difference between neighbouring values; 1 if no factor is given."""
    factor: int | None = Field(default=None, ge=2)
    """Ratio of neighbouring values."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if self.last < self.first:
            raise ValueError("`to` must not be below `from`")
        if self.step is not None and self.factor is not None:
            raise ValueError("give `step` or `factor`, not both")
        if self.factor is None and (self.last - self.first) // (self.step or 1) >= MAX_VALUES:
            raise ValueError(f"a range must have at most {MAX_VALUES} values")
        return self

    def values(self) -> tuple[int, ...]:
        if self.factor is None:
            return tuple(range(self.first, self.last + 1, self.step or 1))
        powers = [self.first]
        while powers[-1] * self.factor <= self.last:
            powers.append(powers[-1] * self.factor)
        return tuple(powers)


def _spread(choice: Any) -> Any:
    """If `choice` is a range, return the list of its values. Return anything else unchanged, to be validated later."""
    if isinstance(choice, Range | dict):
        return list((choice if isinstance(choice, Range) else Range.model_validate(choice)).values())
    return choice


def _spread_buffers(sizes: Any) -> Any:
    """Replace strings such as `64KiB` and `4KiB:1MiB:x4` by byte counts. The order and null entries are kept."""
    if not isinstance(sizes, list) or not all(size is None or isinstance(size, (int, str)) for size in sizes):
        return sizes
    return [value for size in sizes for value in (parse_sizes(size) if isinstance(size, str) else (size,))]


def _spread_sizes(sizes: Any) -> Any:
    """Replace strings such as `64KiB` by byte counts; return all byte counts sorted and without duplicates."""
    spread = _spread_buffers(sizes)
    return sorted(set(spread)) if isinstance(spread, list) and all(isinstance(size, int) for size in spread) else spread


Sizes = Annotated[
    list[Size],
    Field(min_length=1, max_length=MAX_VALUES),
    BeforeValidator(_spread_sizes, json_schema_input_type=list[Size | str]),
]
Weight = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Counts = Annotated[
    list[Count],
    Field(min_length=1, max_length=MAX_VALUES),
    BeforeValidator(_spread, json_schema_input_type=list[Count] | Range),
]
OptionalCounts = Annotated[
    list[Count | None],
    Field(min_length=1, max_length=MAX_VALUES),
    BeforeValidator(_spread, json_schema_input_type=list[Count | None] | Range),
]
Buffers = Annotated[
    list[Size | None],
    Field(min_length=1, max_length=MAX_VALUES),
    BeforeValidator(_spread_buffers, json_schema_input_type=list[Size | str | None]),
]


PREFIX = "program:"
"""Prefix that distinguishes the names of program files from methods and, in records, from other baselines."""

SUFFIXES = (".xml", ".json")
_DIGITS = 8
_MAX_NAME = 48
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A program file. Its name in records contains digits of `digest`, so that a changed file gets another name."""

    path: str
    name: str
    text: bytes
    digest: str


def is_program_file_name(text: str) -> bool:
    """Return whether the baseline `text` is a file rather than a method. Only files have a suffix."""
    return text.endswith(SUFFIXES)


def is_adopted(method: str) -> bool:
    """Return whether `method` names an adopted program (one from a file) rather than a synthesis method."""
    return method.startswith(PREFIX)


def read_program_file(path: str) -> ProgramFile:
    """Read the program file at `path`. Raises InvalidInput if it cannot be read."""
    text = read_file(path, MAX_TEXT_BYTES)
    digest = hashlib.sha256(text).hexdigest()
    plain = _UNUSUAL.sub("_", Path(path).name)[-_MAX_NAME:]  # MLflow allows no other characters in metric names
    return ProgramFile(path, f"{PREFIX}{plain}:{digest[:_DIGITS]}", text, digest)


def sqlite_file(uri: str) -> Path | None:
    """Return the file of the SQLite database at `uri`, or None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def kind_of_tables(tables: Collection[str]) -> str | None:
    """Return which tool created the database tables with these names: MLflow, Optuna, or None for any other tool."""
    if set(tables) >= _OPTUNA:
        return "Optuna"
    return "MLflow" if set(tables) >= _MLFLOW else None


def tables_in(file: Path) -> frozenset[str]:
    """Open a SQLite file read-only and return the names of its tables. Raises sqlite3.Error for any other file."""
    if file.exists() and not file.is_file():
        raise sqlite3.OperationalError("it is not a regular file")
    with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=PATIENCE_S)) as connection:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


def tables_at(uri: str) -> frozenset[str]:
    """Return the names of the tables in the database at `uri`. Servers of most kinds must accept a connection in 2 s.

    Raises the errors of SQLAlchemy and of the database driver.
    """
    import sqlalchemy  # noqa: PLC0415 - takes half a second to import

    limits = {} if uri.startswith(("sqlite", "mssql", "oracle")) else {"connect_timeout": 2}
    engine = sqlalchemy.create_engine(uri, connect_args=limits, poolclass=sqlalchemy.pool.NullPool)
    try:
        return frozenset(sqlalchemy.inspect(engine).get_table_names())
    finally:
        engine.dispose()


class NeedsSection(Strict):
    """Requirements for a Ray node that measures; its resources are reserved while the campaign runs."""

    cpus: float = Field(default=1, gt=0)
    """CPUs."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs; by default one per rank on the node (msccl), or none. Use 0 if Ray knows of no GPUs."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Amounts of the cluster's custom resources; a resource that exists once per fabric gives exclusive use of it."""
    labels: dict[str, str] = Field(default={})
    """Labels that the node must have."""
    patience_s: float = Field(default=30, gt=0, le=86400)
    """Seconds to wait for such a node; use more if nodes are started on demand."""


class RunnerSection(Strict):
    """The keys that the section `runner` has for all runners; `section_model` adds the options of one runner."""

    runner: ClassVar[type[RunnerConfig]]

    kind: Annotated[str, FROM_REQUESTS]
    """The runner."""
    timeout_s: float = Field(default=60.0, gt=0, le=86400)
    """Time limit for one measurement, in seconds."""
    needs: Annotated[NeedsSection, SERVER_ONLY] = Field(default=NeedsSection())
    """Requirements for a node that measures."""
    at_once: Annotated[int, SERVER_ONLY] = Field(default=1, ge=1, le=64)
    """Number of nodes that measure at the same time; live runners never share a machine."""

    @property
    def config(self) -> RunnerConfig:
        if self.runner.is_nested:
            config: RunnerConfig = getattr(self, self.runner.name)
            return config
        return self.runner.model_construct(**{name: getattr(self, name) for name in self.runner.model_fields})

    @property
    def capabilities(self) -> Capabilities:
        return self.runner.capabilities

    @property
    def measurers(self) -> MeasurerRequest:
        node = ResourceRequest(**self.needs.model_dump(exclude={"gpus"}))
        return MeasurerRequest(node, self.needs.gpus, self.at_once)


def section_model(runner: type[RunnerConfig]) -> type[RunnerSection]:
    """Return the pydantic model of the campaign section for `runner`: the common keys and the runner's options."""
    bases: tuple[type[Any], ...] = (RunnerSection,) if runner.is_nested else (runner, RunnerSection)
    fields: dict[str, Any] = {"kind": (Literal[runner.name], Field(default=runner.name, description=runner.summary))}
    if runner.is_nested:
        fields[runner.name] = (runner, Field(default=runner(), description="Options of the runner."))
    model = create_model(f"{runner.name.capitalize()}Section", __base__=bases, __doc__=runner.__doc__, **fields)
    model.runner = runner
    return model


def _with_kind(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {**section, "kind": runner_text(section.get("kind", DEFAULT_KIND))}


SECTIONS: Mapping[str, type[RunnerSection]] = {name: section_model(runner) for name, runner in RUNNERS.items()}
"""Kind of a runner -> model of the section `runner` for it. Contains all registered runners."""


def _schema(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    sections = tuple(SECTIONS.values())
    section: Any = Annotated[Union[sections], Discriminator("kind"), BeforeValidator(_with_kind)]  # noqa: UP007
    return handler.generate_schema(section)


AnyRunnerSection: TypeAlias = Annotated[RunnerSection, GetPydanticSchema(_schema)]
"""The section of any registered runner, discriminated by the key `kind` (default: local)."""


def read_section(document: Mapping[str, Any]) -> RunnerSection:
    """Return the section that `document` describes; raises pydantic's ValidationError if it is not valid."""
    section: RunnerSection = TypeAdapter(AnyRunnerSection).validate_python(dict(document))
    return section
