"""The site builds strictly: no dead link or anchor, no page without a place, nothing loaded from other hosts."""

import json
import re

import pytest

import chorale as ch
from tests.command import python
from tests.docs.pages import DOCS, PAGES


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    python("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder, NO_MKDOCS_2_WARNING="1")
    return folder


def test_every_page_is_there(site):
    assert all((site / page).with_suffix(".html").is_file() for page in PAGES)


def test_searches_find_pages(site):
    found = {
        entry["location"].split(".html")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert {"guide/first-hour", "reference/python-api", "reference/cli"} <= found


def test_the_python_reference_has_every_public_function_and_method(site):
    page = (site / "reference/python-api.html").read_text()
    for name in set(ch.__all__) - {"ChoraleError", "__version__", "load_table"}:
        assert re.search(rf'<h\d id="chorale\.\w+\.{name}"', page), name
    for name in ("design.DesignedSchedule.gap", "design.NetworkTopology.tune", "campaigns.TuningResult.to_frame"):
        assert f'id="chorale.{name}"' in page, name
    assert "Args:" not in page


def test_nothing_comes_from_other_hosts(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:|//)[^>]*>", page.read_text())
        assert not loaded, page


def test_the_reference_has_every_command(site):
    page = (site / "reference" / "cli.html").read_text()
    for command in ("synth", "topology show", "fabric up", "tune", "bench"):
        assert re.search(rf"<h[23][^>]*><code>chorale {command}</code>", page), command


def test_the_http_reference_is_that_of_the_service(site):
    paths = json.loads((site / "reference" / "openapi.json").read_text())["paths"]
    page = (site / "reference" / "http.html").read_text()
    assert "/v1/syntheses" in paths
    assert all(path in page for path in paths)


def test_every_picture_of_the_pages_can_be_drawn_again():
    from_code = set(re.findall(r'^    "([a-z0-9-]+)": \[', (DOCS / "site" / "pictures.py").read_text(), re.MULTILINE))
    drawn = {picture.stem for picture in (DOCS / "images").glob("*.svg")}
    used = {name for page in PAGES for name in re.findall(r"images/([a-z0-9-]+)\.svg", (DOCS / page).read_text())}
    assert used <= drawn == from_code
