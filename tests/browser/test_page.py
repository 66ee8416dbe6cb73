"""The page as people use it: design, download, compare, follow a campaign; errors, emptiness, keyboard, narrow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.lift import lift
from chorale.synth.topology.formats.files import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.topology_specs import load_topology

expect.set_options(timeout=60_000)  # a busy machine takes its time
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


def looked_at(page: Page, name: str) -> None:
    """Keep a screenshot where CHORALE_SCREENSHOTS names a folder: for the guide, and to look at."""
    folder = os.environ.get("CHORALE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def designed(page: Page, topology: str, method: str, collective: str) -> None:
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill(topology)
    page.get_by_label("Method").select_option(method)
    page.get_by_label("Collective").select_option(collective)
    page.get_by_role("button", name="Design").click()
    expect(page.get_by_role("heading", name=f"{method} {collective}")).to_be_visible()


def test_before_anything_was_asked_the_page_says_what_to_do(page: Page):
    page.goto("/#jobs")
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    page.goto("/#compare")
    expect(page.get_by_text("No schedules yet")).to_be_visible()
    page.goto("/#campaigns")
    expect(page.get_by_text("No campaigns yet")).to_be_visible()
    expect(page.locator("#health")).to_contain_text("version")


def test_a_schedule_is_designed_drawn_and_downloaded(page: Page):
    designed(page, "a100:2", "forest", "allgather")
    expect(page.get_by_text("optimal, with a proof")).to_be_visible()
    expect(page.locator("svg.fabric")).to_have_count(2)
    expect(page.locator("svg.fabric").first.locator("circle")).to_have_count(36)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download schedule.parquet").click()
    schedule = from_parquet(Path(download.value.path()).read_bytes(), load_topology)
    assert str(verify(schedule).cost.time_per_byte) == "3/1040"
    page.get_by_label("Runtime").select_option("msccl-executor-xml")
    page.get_by_role("button", name="Make the program").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download program.xml").click()
    assert len(lift(Path(download.value.path()).read_bytes()).ranks) == 16
    looked_at(page, "design")


def test_another_root_draws_another_tree(page: Page):
    designed(page, "ring:5", "bfb", "allgather")
    expect(page.get_by_text("The way of the data of rank 0, by step")).to_be_visible()
    page.get_by_label("Root").last.fill("3")
    page.keyboard.press("Tab")
    expect(page.get_by_text("The way of the data of rank 3, by step")).to_be_visible()


def test_a_network_may_come_from_a_file(page: Page, tmp_path: Path):
    file = tmp_path / "network.json"
    file.write_text(json.dumps(to_json(parse_topology("mesh:2x3"))))
    page.goto("/#design")
    page.get_by_label("or a JSON topology").set_input_files(file)
    page.get_by_role("button", name="Design").click()
    expect(page.get_by_text("6 ranks, 14 links")).to_be_visible()


def test_what_is_wrong_is_said_with_the_way_out(page: Page):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("torus:4x")
    page.get_by_role("button", name="Design").click()
    expect(page.locator(".error")).to_contain_text("whole numbers")
    page.get_by_label("Topology", exact=True).fill("ring:10000000")
    page.get_by_role("button", name="Design").click()
    expect(page.locator(".error")).to_contain_text("10000000 nodes, about")
    page.goto(f"/#design/{'0' * 64}")
    expect(page.get_by_role("alert").first).to_contain_text("a result must be there")


def test_schedules_are_compared_by_size(page: Page):
    designed(page, "torus:3x3", "bfb", "allreduce")
    designed(page, "torus:3x3", "ring", "allreduce")
    page.goto("/#compare")
    expect(page.get_by_text("the fastest in bold")).to_be_visible()
    expect(page.locator("svg.chart polyline").first).to_be_visible()
    assert page.locator("td strong").count() >= 10
    looked_at(page, "compare")


def test_a_job_is_seen_and_can_be_cancelled(page: Page):
    page.goto("/#design")
    page.get_by_label("Topology", exact=True).fill("genkautz:4,1500")  # some ten seconds
    page.get_by_label("Method").select_option("forest")
    page.get_by_label("Collective").select_option("allgather")
    page.get_by_role("button", name="Design").click()
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("button", name="cancel").first.click()
    expect(page.get_by_role("cell", name="cancelled").first).to_be_visible()
    looked_at(page, "jobs")


def test_a_campaign_is_followed_to_its_end_and_its_best_taken_along(page: Page):
    page.goto("/#campaigns")
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_text("12 of 12")).to_be_visible(timeout=150_000)
    expect(page.get_by_role("table").first).to_contain_text("bfb")
    expect(page.locator("svg.chart")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("button", name="program").first.click()
    assert len(lift(Path(download.value.path()).read_bytes()).ranks) == 8
    looked_at(page, "campaign")
    page.goto("/#campaigns")
    expect(page.get_by_role("link", name="first-campaign")).to_be_visible()


def test_a_broken_campaign_is_refused_beside_its_text(page: Page):
    page.goto("/#campaigns")
    page.get_by_label("Campaign, as JSON").fill('{"name": "x"}')
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_role("alert").last).to_contain_text("topology")
    page.get_by_label("Campaign, as JSON").fill("{")
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_role("alert").last).not_to_be_empty()


def test_the_keyboard_reaches_everything(page: Page):
    page.goto("/#design")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Design")).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Topology", exact=True)).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("ring:4")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="bfb allreduce")).to_be_visible()


@pytest.mark.parametrize("view", ["design", "jobs", "compare", "campaigns"])
def test_on_a_narrow_screen_nothing_is_cut_off(page: Page, view: str):
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"/#{view}")
    expect(page.locator("main section").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    looked_at(page, f"narrow-{view}")


def test_when_the_service_is_gone_the_page_says_so(page: Page):
    page.goto("/#design")
    expect(page.locator("#health")).to_contain_text("version")
    page.context.set_offline(True)
    expect(page.locator("#health")).to_contain_text("does not answer", timeout=15_000)
    page.context.set_offline(False)
    expect(page.locator("#health")).to_contain_text("version", timeout=15_000)
