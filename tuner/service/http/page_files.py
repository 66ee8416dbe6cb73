"""The files of the page; those of other projects carry their version in their names, so that browsers may keep them."""

from __future__ import annotations

from importlib import resources

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

_KEPT = "public, max-age=31536000, immutable"


class PageFiles(StaticFiles):
    """Serves the folder `page` of this package."""

    def __init__(self) -> None:
        super().__init__(directory=str(resources.files("chorale.tuner.service").joinpath("page")), html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file; what is vendored may be kept for a year."""
        response = await super().get_response(path, scope)
        if path.startswith("vendor/") and response.status_code == 200:
            response.headers["Cache-Control"] = _KEPT
        return response
