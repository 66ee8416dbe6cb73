"""Routes of results: documents, files, pictures. They are the same for everybody who may call."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import FileResponse

from tuner.service.errors import NotFound
from tuner.service.http.dependencies import Known, TheDesk
from tuner.service.http.responses import ResultView
from tuner.service.jobs.schedule_view import picture_of
from tuner.service.jobs.scheduler import Desk
from tuner.service.jobs.tasks import PROGRAM_FILE, SCHEDULE_FILE

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Key of a result.")]
FileName = Annotated[str, Path(pattern=r"^[a-z]+\.[a-z]+$", max_length=40, description="One of the result's `files`.")]
_MEDIA = {SCHEDULE_FILE: "application/vnd.apache.parquet", PROGRAM_FILE: "application/xml"}

router = APIRouter(prefix="/v1/results", tags=["results"])


@router.get("/{key}", response_model=ResultView, summary="What came of a job")
def result(key: Key, _caller: Known, desk: TheDesk) -> dict[str, Any]:
    """Return the document and the names of the files."""
    return {"key": key, "document": _document(desk, key), "files": desk.store.files(key)}


@router.get("/{key}/files/{name}", summary="A file of a result", response_class=FileResponse)
def file(key: Key, name: FileName, _caller: Known, desk: TheDesk) -> FileResponse:
    """Return the schedule or the program."""
    path = desk.store.file(key, name)
    if path is None:
        raise NotFound("a file must be one of its result", name, f"see `files` of /v1/results/{key}")
    return FileResponse(path, media_type=_MEDIA.get(name), filename=f"{key[:12]}.{name}")


@router.get("/{key}/picture", summary="Places of nodes, loads of links, the tree of a root")
def picture(key: Key, _caller: Known, desk: TheDesk, root: Annotated[int, Query(ge=0, le=2**20)] = 0) -> dict[str, Any]:
    """Return what is drawn of the schedule of a synthesis."""
    _document(desk, key)
    path = desk.store.file(key, SCHEDULE_FILE)
    if path is None:
        raise NotFound("a picture is drawn of a schedule", key, "take the result of a synthesis")
    return picture_of(path.read_bytes(), root)


def _document(desk: Desk, key: str) -> dict[str, Any]:
    document = desk.store.result(key)
    if document is None:
        raise NotFound("a result must be there", key, "take the key from the field `result` of a job that is done")
    return document
