"""The API explorer at /docs: Swagger UI from files of the package, so that it works offline and under our policy."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

EXPLORER_PATH = "/docs"
_VERSION = "5.35.0"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Chorale: the API</title>
  <link rel="icon" href="icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="vendor/swagger-ui-{_VERSION}.css">
  <script src="vendor/swagger-ui-{_VERSION}.js"></script>
  <script src="explorer.js" type="module"></script>
</head>
<body><main id="explorer"></main></body>
</html>
"""

explorer_router = APIRouter(include_in_schema=False)


@explorer_router.get(EXPLORER_PATH)
def explorer() -> HTMLResponse:
    """Return the page; what it calls asks for a token, as everywhere."""
    return HTMLResponse(_PAGE)
