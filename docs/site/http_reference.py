"""The HTTP API as a page, from the OpenAPI document that the service itself returns at /openapi.json."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from chorale.tuner.service.http.application import ROUTERS

_METHODS = ("get", "post", "put", "patch", "delete")


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes for jobs, results and campaigns."""
    api = FastAPI(title="Chorale", version="1")
    for router in ROUTERS:
        api.include_router(router)
    return api.openapi()


def http_page(document: dict[str, Any]) -> str:
    """Return the page: what each route does, then the fields of its requests."""
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in _METHODS
    ]
    rows = [
        f"| `{method} {path}` | {operation.get('summary', '')} | {_body(operation)} |"
        for method, path, operation in routes
    ]
    schemas = document["components"]["schemas"]
    sent = sorted({_body_name(operation) for _, _, operation in routes} - {""})
    return "\n".join(
        [
            "# The HTTP API",
            "",
            "Made from the [OpenAPI document](openapi.json), which a running service returns at `/openapi.json`. It",
            "also answers `GET /healthz` and `GET /metrics`. To start it, see [the service](../operations/service.md).",
            "",
            "| route | what it does | request body |",
            "|---|---|---|",
            *rows,
            *(line for name in sent for line in _schema(name, schemas[name])),
            "",
        ]
    )


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    required = schema.get("required", [])
    rows = [
        f"| `{key}` | {_type(field)} | {'yes' if key in required else ''} | {_cell(field.get('description', ''))} |"
        for key, field in schema.get("properties", {}).items()
    ]
    return [
        "",
        f"## {name}",
        "",
        schema.get("description", ""),
        "",
        "| key | type | required | |",
        "|---|---|---|---|",
        *rows,
    ]


def _body_name(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _body(operation: dict[str, Any]) -> str:
    name = _body_name(operation)
    return f"[{name}](#{name.lower()})" if name else ""


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    return str(field.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
