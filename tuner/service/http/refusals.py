"""Refusals as responses: rule, value and way out, in the same form everywhere."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from chorale.synth.errors import ChoraleError
from chorale.tuner.service.access import status_of
from chorale.tuner.service.redaction import redacted

_HEADERS = {429: {"Retry-After": "10"}, 401: {"WWW-Authenticate": "Bearer"}}


def refusal(status: int, rule: str, value: str, way_out: str, headers: Any = None) -> JSONResponse:
    """Return a refusal without what must not be told."""
    facts = {"rule": redacted(rule), "value": redacted(value)[:500], "way_out": redacted(way_out)}
    return JSONResponse({"error": facts}, status_code=status, headers=headers)


def refusal_of(error: ChoraleError) -> JSONResponse:
    """Return the refusal that says what `error` is."""
    status = status_of(error)
    return refusal(status, error.rule, str(error.value), error.way_out, _HEADERS.get(status))
