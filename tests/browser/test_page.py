"""The page as people use it: design, bound, find, compare, campaigns; errors, keyboard, narrow, dark, axe."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FloatRect, Page, expect

from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.lift import lift
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import load_topology
from tests.browser.conftest import Serving

EXAMPLES = Path(__file__).parents[2] / "examples"

expect.set_options(timeout=60_000)  # a busy machine takes its time
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RESULTS = Path(__file__).parents[1] / "data" / "results" / "all_reduce-nccl.log"
VIEWS = ("design", "find", "judge", "compare", "campaigns", "jobs")


def accessible(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is now; its code is not run by the page."""
    page.evaluate(AXE)
    options = {"runOnly": {"type": "tag", "values": RULES}}
    outcome: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}" for each in outcome["violations"]]


def photographed(page: Page, name: str, height: float | None = None) -> None:
    """Keep a screenshot where CHORALE_SCREENSHOTS names a folder: for the guide, and to look at.

    height: of what is shown of a long page, in pixels
    """
    folder = os.environ.get("CHORALE_SCREENSHOTS")
    if folder:
        clip: FloatRect | None = None if height is None else {"x": 0, "y": 0, "width": 1280, "height": height}
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True, clip=clip)


def designed(page: Page, topology: str, method: str, collective: str, made_by: str | None = None) -> None:
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill(topology)
    page.get_by_label("Collective").select_option(collective)
    page.get_by_label("Method").select_option(method)
    page.get_by_role("button", name="Design").click()
    expect(page.get_by_role("heading", name=f"{made_by or method} {collective}")).to_be_visible()


def test_before_anything_was_asked_the_page_says_what_to_do(page: Page):
    for view, text in (("jobs", "No jobs yet"), ("compare", "No schedules yet"), ("campaigns", "No campaigns yet")):
        page.goto(f"/#{view}")
        expect(page.get_by_text(text)).to_be_visible()
    expect(page.locator("#health")).to_contain_text("version")


def test_auto_designs_a_schedule_that_is_drawn_through_switches_and_downloaded(page: Page):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("a100:2")
    expect(page.get_by_text("16 ranks, 20 switches, 96 links")).to_be_visible()  # while it is typed
    expect(page.get_by_label("Method")).to_have_value("auto")
    designed(page, "a100:2", "auto", "allgather", "forest")
    expect(page.get_by_text("optimal, with a proof")).to_be_visible()
    expect(page.get_by_label("Topology", exact=True)).to_have_value("a100:2")  # the form keeps its values
    expect(page.get_by_label("Method")).to_have_value("auto")
    route = page.locator("svg.fabric").last
    expect(route.locator("path title", has_text="0.0 to nvswitch:0").first).to_be_attached()
    page.get_by_label("Step", exact=True).fill("1")
    expect(page.get_by_text("Step 2 of 2:")).to_be_visible()
    page.get_by_role("button", name="Whole collective").click()
    page.get_by_role("button", name="Play the steps").click()
    expect(page.get_by_text("Step 2 of 2:")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download schedule.parquet").click()
    schedule = from_parquet(Path(download.value.path()).read_bytes(), load_topology)
    assert str(verify(schedule).cost.time_per_byte) == "3/1040"
    page.get_by_label("Runtime").select_option("msccl-executor-xml")
    page.get_by_role("button", name="Make the program").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download program.xml").click()
    assert len(lift(Path(download.value.path()).read_bytes()).ranks) == 16
    assert accessible(page) == []
    photographed(page, "design")


def test_another_root_draws_another_tree_and_reload_back_and_links_keep_what_is_shown(page: Page):
    designed(page, "ring:5", "bfb", "allgather")
    expect(page.get_by_text("The route of the data of rank 0")).to_be_visible()
    page.get_by_label("Root").last.fill("3")
    page.keyboard.press("Tab")
    expect(page.get_by_text("The route of the data of rank 3")).to_be_visible()
    link = page.url
    page.reload()
    expect(page.get_by_role("heading", name="bfb allgather")).to_be_visible()
    expect(page.get_by_label("Topology", exact=True)).to_have_value("ring:5")
    page.go_back()
    expect(page.get_by_text("Press Design, or begin with")).to_be_visible()
    expect(page.get_by_label("Topology", exact=True)).to_have_value("ring:5")
    page.go_forward()
    expect(page.get_by_role("heading", name="bfb allgather")).to_be_visible()
    page.goto("/#design?topology=mesh:2x3&collective=broadcast&root=2")
    expect(page.get_by_label("Topology", exact=True)).to_have_value("mesh:2x3")
    expect(page.get_by_label("Root", exact=True)).to_have_value("2")
    page.goto(link.split("?")[0])  # of somebody else: the form says what the schedule is of
    expect(page.get_by_label("Topology", exact=True)).to_have_value("ring:5")
    expect(page.get_by_label("Method")).to_have_value("bfb")


def test_a_bound_shows_its_cut_and_what_switches_could_add(page: Page):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("h100:2")
    page.get_by_role("button", name="Bound only").click()
    expect(page.get_by_role("heading", name="Bound of allreduce")).to_be_visible()
    expect(page.locator("dt", has_text="with switches that add or multicast")).to_be_visible()
    expect(page.get_by_text("16 groups of ranks must have received 30 × size in all")).to_be_visible()
    expect(page.locator("svg .cut").first).to_be_attached()
    photographed(page, "bound")


def test_a_network_is_found_and_designed_on(page: Page):
    page.goto("/#find")
    page.get_by_label("Nodes").fill("16")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name="Networks of 16 nodes and degree 4")).to_be_visible()
    expect(page.locator("figure[data-drawn]")).to_have_count(1)
    assert accessible(page) == []
    photographed(page, "find")
    spec = page.locator("tbody td").first.inner_text()
    page.get_by_role("link", name=f"design on {spec}").click()
    expect(page.get_by_label("Topology", exact=True)).to_have_value(spec)


def test_a_network_may_come_from_a_file(page: Page, tmp_path: Path):
    file = tmp_path / "network.json"
    file.write_text(json.dumps(to_json(parse_topology("mesh:2x3"))))
    page.goto("/#design")
    page.get_by_label("or a file of the machine").set_input_files(file)
    expect(page.get_by_text("6 ranks, 14 links").first).to_be_visible()
    page.get_by_role("button", name="Design").click()
    expect(page.get_by_text(": 6 ranks, 14 links")).to_have_count(2)
    page.get_by_label("or a file of the machine").set_input_files(EXAMPLES / "four-a100-topology.xml")
    expect(page.get_by_text("4 ranks").first).to_be_visible()


def test_what_is_wrong_is_said_with_the_way_out(page: Page):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("torus:4x")
    expect(page.locator(".problem").first).to_contain_text("whole numbers")  # beside the field
    expect(page.get_by_label("Topology", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Topology", exact=True).fill("ring:10000000")
    page.get_by_role("button", name="Design").click()
    expect(page.locator(".error")).to_contain_text("10000000 nodes, about")
    page.goto(f"/#design/{'0' * 64}")
    expect(page.get_by_role("alert").first).to_contain_text("there is no result")


def test_schedules_are_compared_by_size(page: Page):
    designed(page, "torus:3x3", "bfb", "allreduce")
    designed(page, "torus:3x3", "ring", "allreduce")
    page.goto("/#compare")
    expect(page.get_by_text("the fastest in bold")).to_be_visible()
    expect(page.locator("figure[data-drawn]")).to_have_count(1)
    assert page.locator("td strong").count() >= 10
    page.get_by_role("button", name="size").click()
    page.get_by_role("button", name="size").click()
    expect(page.locator("tbody td").first).to_have_text("1 GiB")
    photographed(page, "compare")


def test_a_job_is_seen_and_can_be_cancelled(page: Page, service: Serving):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("genkautz:4,60")
    service.backend.held.set()
    page.get_by_role("button", name="Design").click()
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("button", name="cancel").first.click()
    expect(page.get_by_role("cell", name="cancelled").first).to_be_visible()
    service.backend.held.clear()
    assert accessible(page) == []
    photographed(page, "jobs")


def test_a_campaign_is_followed_to_its_end_and_its_best_taken_along(
    page: Page, service: Serving, mlflow_template: Path
):
    shutil.copy(mlflow_template, service.home / "mlflow.db")
    page.goto("/#campaigns")
    campaign = page.get_by_label("Campaign, as YAML")
    campaign.fill(campaign.input_value().replace("trials: 12", "trials: 8"))
    expect(page.get_by_text("Valid: 8 ranks, 24 configurations, up to 8 trials.")).to_be_visible()
    assert accessible(page) == []
    photographed(page, "launch")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_text("8 of 8")).to_be_visible(timeout=150_000)
    expect(page.get_by_role("table").first).to_contain_text("x")
    expect(page.locator("figure[data-drawn]")).to_have_count(2)  # by size, and in the order of trials
    with page.expect_download() as download:
        page.get_by_role("button", name="program").first.click()
    assert len(lift(Path(download.value.path()).read_bytes()).ranks) == 8
    assert accessible(page) == []
    photographed(page, "campaign")
    page.goto("/#campaigns")
    expect(page.get_by_role("link", name="first-campaign")).to_be_visible()


def test_a_broken_campaign_is_refused_beside_its_text(page: Page):
    page.goto("/#campaigns")
    page.get_by_label("Campaign, as YAML").fill("name: x\n")
    expect(page.get_by_role("alert").last).to_contain_text("topology")
    page.get_by_label("Campaign, as YAML").fill("name: [")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_role("alert").last).to_contain_text("YAML")
    page.reload()
    expect(page.get_by_label("Campaign, as YAML")).to_have_value("name: [")  # what was typed is kept in the tab


def test_results_in_a_file_are_judged(page: Page):
    page.goto("/#judge")
    page.get_by_label("Results").set_input_files(RESULTS)
    page.get_by_label("Topology", exact=True).fill("b200:2")
    page.get_by_role("button", name="Judge").click()
    expect(page.get_by_role("heading", name="allreduce on b200:2")).to_be_visible()
    expect(page.get_by_text("of what NCCL 2.28.3")).to_be_visible()
    expect(page.get_by_role("columnheader", name="of the bound")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="allreduce on b200:2")).to_be_visible()


def test_the_keyboard_reaches_everything(page: Page):
    page.goto("/#design")
    expect(page.locator("p", has_text="degree 4")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Design")).to_be_focused()
    for _ in range(7):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Topology", exact=True)).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("ring:4")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="bfb allreduce")).to_be_visible()


def test_every_view_is_accessible_in_both_colours_and_fits_a_narrow_screen(page: Page):
    for view in VIEWS:
        page.set_viewport_size({"width": 360, "height": 740})
        page.goto(f"/#{view}")
        expect(page.locator("main section").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert accessible(page) == [], (view, scheme)
        photographed(page, f"narrow-{view}")


def test_when_the_service_is_gone_the_page_says_so(page: Page):
    page.goto("/#design")
    expect(page.locator("#health")).to_contain_text("version")
    page.context.set_offline(True)
    expect(page.locator("#health")).to_contain_text("does not answer", timeout=15_000)
    page.context.set_offline(False)
    expect(page.locator("#health")).to_contain_text("version", timeout=15_000)
