"""Requests drawn from the service's OpenAPI document: every answer is one that it names, never a 5xx."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving import served
from tests.unit.tuner.service.conftest import BEARER, FakeTaskBackend, start_service

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def drawn_from(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Any]:
    """The document of a service that answers on a port of this machine; its registry is made before."""
    home = tmp_path_factory.mktemp("fuzz")
    shutil.copy(mlflow_template, home / "mlflow.db")
    with served(start_service(home, FakeTaskBackend()).app) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize("examples", [8, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_every_answer_is_one_that_the_document_names(drawn_from, examples):
    operations = [operation.ok() for operation in drawn_from.get_all_operations()]
    assert len(operations) > 15

    for operation in operations:

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, headers=BEARER)

        check()
