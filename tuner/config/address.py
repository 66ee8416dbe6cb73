"""Addresses of servers and databases in campaigns: they may carry a password, which no output and no file shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from pydantic import GetCoreSchemaHandler, SerializationInfo
from pydantic_core import core_schema

from chorale.synth.errors import Unavailable
from chorale.synth.redaction import is_hidden, redacted

REVEALED = {"reveal": True}
"""The context of `model_dump` for documents that go to a process of the same user, and to no file."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address whose text, in messages as in JSON, has `***` in place of its password."""

    _secret: str = field(repr=False)

    def reveal(self) -> str:
        """Return the whole address, for who connects to it."""
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
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), text]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                _serialized, info_arg=True, return_schema=core_schema.str_schema(), when_used="unless-none"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, handler: Any) -> Any:
        return handler(core_schema.str_schema())


def with_password(address: str, variable: str) -> str:
    """Return `address`, or the one that the environment variable has where `address` was stored without its password.

    Raises Unavailable if the variable does not have it.
    """
    if not is_hidden(address):
        return address
    known = os.environ.get(variable, "")
    if redacted(known) != address:
        rule = "an address that was stored without its password needs it again"
        raise Unavailable(rule, address, f"set {variable} to the whole address, or give the campaign file again")
    return known


def _serialized(address: Address | str, info: SerializationInfo) -> str:
    """Return the text for a document; an address that was put into the model unchecked is a plain text."""
    whole = address.reveal() if isinstance(address, Address) else address
    return whole if info.context == REVEALED else redacted(whole)
