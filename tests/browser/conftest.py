"""A real service and a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.integration.test_service import free_port, serving, token_of

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of this machine; without one, the reason is told (.ci/run installs it)."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        message = "THE PAGE IS NOT TESTED ON THIS MACHINE: there is no chromium; install the package `chromium`"
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Serving(NamedTuple):
    """A running `chorale serve`: its address, the token of this machine, its data folder."""

    url: str
    token: str
    home: Path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Serving]:
    """One service for all tests of a file."""
    port = free_port()
    home: Path = tmp_path_factory.mktemp("service")
    shutil.copy(mlflow_template, home / "mlflow.db")
    with serving(home, port):
        yield Serving(f"http://127.0.0.1:{port}", token_of(home), home)


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
