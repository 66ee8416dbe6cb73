"""MLflow's own pages in a real browser, over a finished campaign: what people find there."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from chorale.tuner.files.home import Home
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.tracking.mlflow_pages import USER, password_file
from tests.browser.test_page import photographed
from tests.integration.mlflow_server import server
from tests.unit.tuner.launch.test_tuning import run
from tests.waiting import free_port

PATIENCE_MS = 90_000


@pytest.fixture
def report(home: Home) -> TuneReport:
    return run(home)


@pytest.fixture
def mlflow_page(browser: Browser, home: Home, report: TuneReport) -> Iterator[Page]:
    """A page on the MLflow server that `chorale ui` starts over the data of `report`."""
    port = free_port()
    with server(home, port):
        credentials = {"username": USER, "password": password_file(home).read_text().strip()}
        context = browser.new_context(
            viewport={"width": 1280, "height": 800}, base_url=f"http://127.0.0.1:{port}", http_credentials=credentials
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        context.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_campaign_in_the_pages_of_mlflow(mlflow_page: Page, report: TuneReport) -> None:
    page, tracked = mlflow_page, report.tracked
    page.goto(f"/#/experiments/{tracked.experiment_id}/runs?workflowType=machine_learning")
    expect(page.get_by_text("small 1", exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    parent = page.get_by_role("row").filter(has_text="small 1")
    parent.get_by_role("button").first.click()
    expect(page.get_by_text("001 bfb", exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    photographed(page, "mlflow-runs", height=800)
    page.goto(f"/#/experiments/{tracked.experiment_id}/runs/{tracked.parent_run_id}")
    expect(page.get_by_text("best_speedup", exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    page.goto(f"/#/models/chorale.allreduce.64KiB.ring-4.{report.launch.conditions['topology'][:8]}")
    expect(page.get_by_text("@ champion").first).to_be_visible(timeout=PATIENCE_MS)
    photographed(page, "mlflow-model", height=800)
