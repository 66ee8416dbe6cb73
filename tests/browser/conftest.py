"""A real service and a real browser: headless Chromium, driven by Playwright."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from chorale.tuner.files.home import Home
from chorale.tuner.service.access import load_access, local_token
from tests.browser.local_service import ThreadLaunches
from tests.serving import served
from tests.unit.tuner.service.conftest import FakeTaskBackend, service_api

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first is the same engine without windows, which takes a fraction of the time to start and to open a page."""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of this machine; without one, the reason is told (.ci/run installs it)."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"THE PAGE IS NOT TESTED ON THIS MACHINE: there is no chromium; install the package {BROWSERS[0]}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Serving(NamedTuple):
    """A running service: its address, the token of this machine, its data folder, and what computes its jobs."""

    url: str
    token: str
    home: Path
    backend: FakeTaskBackend


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One service for all tests, in this process; jobs are computed there as well."""
    home, launches = Home(tmp_path_factory.mktemp("service")), ThreadLaunches()
    home.create(home.service)
    backend, access = FakeTaskBackend(), load_access(None, "127.0.0.1", home, time.time)
    with served(service_api(home, backend, launches, access)) as url:
        yield Serving(url, local_token(home), home.root, backend)
        launches.close()


@pytest.fixture
def page(browser: Browser, service: Serving) -> Iterator[Page]:
    """A page on the service, by the link that `chorale serve` prints; a complaint of the console fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=service.url, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"/#token={service.token}")
    yield page
    context.close()
    expected = ("status of 4", "ERR_INTERNET_DISCONNECTED")  # refusals and the cut line that tests ask for
    assert [text for text in complaints if not any(part in text for part in expected)] == []
