"""The page in a real browser."""

import json
import re

import pytest
from PIL import Image

from ordnet.data.pictures import sample_picture
from tests.browser import needs_browser, open_page
from tests.serving import NAMES, encoded, pixels, serving, tiny_checkpoint

pytestmark = needs_browser


@pytest.fixture(scope="module")
def server():
    with serving("outdoor") as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model that cannot explain, behind a token."""
    model = tiny_checkpoint(tmp_path_factory.mktemp("model") / "plain.safetensors", "dilated-fcn")
    with serving(model, ORDNET_TOKEN="a secret") as running:
        yield running


def start(page, server, fragment=""):
    page.goto(server.url + "/" + fragment)
    page.set_default_timeout(60_000)


def take_sample(page):
    page.click("text=Take the sample")
    page.wait_for_selector("#result:not([hidden]):not(.stale)")


def over(page, right, down):
    """Where on the screen a share of the picture lies."""
    box = page.locator("#stage").bounding_box()
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


def colour_at(page, right, down):
    """What the overlay has there: [red, green, blue, alpha]."""
    script = """([right, down]) => { const c = document.getElementById("overlay");
        return [...c.getContext("2d").getImageData(right * c.width, down * c.height, 1, 1).data]; }"""
    return page.evaluate(script, [right, down])


def wait_for_attention(page):
    page.wait_for_selector("#attention:not([hidden]):not([aria-busy]) figure")


def test_switching_between_models_parses_the_same_picture_again(tmp_path):
    other = tiny_checkpoint(tmp_path / "other.safetensors", "dilated-fcn")
    with serving("outdoor", str(other)) as running, open_page() as (page, _):
        start(page, running)
        page.wait_for_selector('#model:text-is("8 classes")')
        assert page.locator("#models option").all_inner_texts() == ["outdoor", f"{tmp_path.name}/other"]
        take_sample(page)
        assert "outdoor" in page.inner_text("#facts")
        page.select_option("#models", str(other))
        page.wait_for_selector(f'#facts:has-text("{other}")')
        assert page.inner_text("#model") == "4 classes"
        assert set(page.locator(".legend li button span:first-child").all_inner_texts()) <= set(NAMES)
        assert "CC BY 2.0" in page.inner_text("#credit")


def test_a_place_stays_chosen_when_the_model_changes(tmp_path):
    other = tiny_checkpoint(tmp_path / "other.safetensors", "ordnet")
    with serving("outdoor", str(other)) as running, open_page() as (page, troubles):
        start(page, running)
        take_sample(page)
        page.mouse.click(*over(page, 0.62, 0.55))
        wait_for_attention(page)
        place = re.search(r"at x \d+, y \d+", page.inner_text("#attention-text"))[0]
        page.select_option("#models", str(other))
        page.wait_for_selector(f'#facts:has-text("{other}")')
        wait_for_attention(page)
        assert place in page.inner_text("#attention-text") and page.is_visible("#marker")
        page.click('[aria-label="Close attention"]')
        page.select_option("#models", "outdoor")
        page.wait_for_selector('#facts:has-text("outdoor")')
        assert not page.is_visible("#attention") and not troubles


def test_from_the_sample_to_attention(server):
    with open_page() as (page, troubles):
        start(page, server)
        page.wait_for_selector('#model:has-text("outdoor, 8 classes")')
        take_sample(page)
        shares = [float(text.removeprefix("<").split()[0]) for text in page.locator(".legend .share").all_inner_texts()]
        assert len(shares) > 3 and abs(sum(shares) - 100) < 1 and shares == sorted(shares, reverse=True)
        assert "CC BY 2.0" in page.inner_text("#credit")
        assert page.inner_text("#status").startswith("Parsed. sky")

        page.mouse.move(*over(page, 0.8, 0.15))
        assert re.fullmatch(r"sky\s+\d+ %", page.inner_text("#tip"))
        assert page.is_visible("#tip")

        page.mouse.click(*over(page, 0.62, 0.55))
        wait_for_attention(page)
        titles = page.locator("#maps figcaption b").all_inner_texts()
        assert titles == ["Long range", "Middle range", "Gate"]
        assert "water at x" in page.inner_text("#attention-text")
        for canvas in page.locator("#maps canvas").all():
            assert "from" in canvas.get_attribute("aria-label")
            assert (
                canvas.evaluate("c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size") > 50
            )
        assert page.is_visible("#patch") and page.is_visible("#marker")

        page.click('[aria-label="Close attention"]')
        assert not page.is_visible("#attention") and not page.is_visible("#marker")
        assert not troubles


def test_classes_are_switched_and_seen_alone(server):
    with open_page() as (page, troubles):
        start(page, server)
        take_sample(page)
        sky = colour_at(page, 0.8, 0.15)
        assert sky == [112, 174, 232, 255]
        page.uncheck('[aria-label="Show sky"]')
        assert colour_at(page, 0.8, 0.15)[3] == 0
        page.click("text=Show all")
        assert colour_at(page, 0.8, 0.15) == sky
        page.click('button[title="See tree alone"]')
        assert page.get_attribute('button[title="See tree alone"]', "aria-pressed") == "true"
        assert colour_at(page, 0.8, 0.15)[3] > 0 and colour_at(page, 0.8, 0.15) != sky
        page.click('button[title="See tree alone"]')
        assert colour_at(page, 0.8, 0.15) == sky
        page.fill("#strength", "20")
        assert page.inner_text("#strength-text") == "20 %"
        assert page.evaluate('getComputedStyle(document.getElementById("overlay")).opacity') == "0.2"
        assert not troubles


def test_downloads(server, tmp_path):
    with open_page() as (page, troubles):
        start(page, server)
        take_sample(page)
        saved = {}
        for what in ("labels", "overlay", "json"):
            with page.expect_download() as download:
                page.click(f'[data-save="{what}"]')
            saved[what] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[what])
        assert [path.name for path in saved.values()] == ["china.labels.png", "china.overlay.png", "china.json"]
        with Image.open(saved["labels"]) as labels, Image.open(saved["overlay"]) as overlay:
            assert labels.size == overlay.size == (640, 427)
            assert labels.mode == "L" and labels.getextrema()[1] < 8
        found = json.loads(saved["json"].read_text())
        assert found["model"] == "outdoor" and abs(sum(each["share"] for each in found["classes"]) - 1) < 1e-6
        assert not troubles


def test_keys_alone_are_enough(server):
    with open_page() as (page, troubles):
        start(page, server)
        page.wait_for_selector("#model:not(:empty)")
        for _ in range(4):  # brand, API, choose, sample
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#result:not([hidden]):not(.stale)")
        page.focus("#stage")
        page.keyboard.press("ArrowRight")
        before = page.inner_text("#status")
        assert re.fullmatch(r"[a-z ]+ \d+ %", before)
        place = page.locator("#cursor").bounding_box()
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("ArrowDown")
        moved = page.locator("#cursor").bounding_box()
        assert moved["x"] == place["x"] and moved["y"] > place["y"]
        page.keyboard.press("Enter")
        wait_for_attention(page)
        assert "Attention of" in page.inner_text("#status")
        unnamed = page.evaluate(
            """[...document.querySelectorAll("button, input, [role], canvas:not([aria-hidden])")].filter((e) =>
            !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.id === "status"
              || e.getAttribute("role") === "alert")).map((e) => e.outerHTML)"""
        )
        assert unnamed == []
        assert not troubles


def test_a_file_that_is_no_picture(server, tmp_path):
    (tmp_path / "note.jpg").write_text("no picture")
    with open_page() as (page, troubles):
        start(page, server)
        take_sample(page)
        page.set_input_files("#file", tmp_path / "note.jpg")
        page.wait_for_selector("#trouble:not([hidden])")
        assert page.inner_text("#trouble-text").startswith("note.jpg: The file is no picture")
        assert page.inner_text("#name") == "china.jpg"  # the last one stays
        page.click('[aria-label="Close this message"]')
        assert not page.is_visible("#trouble")
        # the browser itself reports every refused request
        assert [each for each in troubles if "415" not in each] == []


def test_dropped_and_pasted_pictures_and_tiff(server, tmp_path):
    (tmp_path / "a.tif").write_bytes(encoded(pixels(100, 80), "TIFF"))
    put = """([name, bytes]) => { const d = new DataTransfer();
        d.items.add(new File([new Uint8Array(bytes)], `${name}.png`, { type: "image/png" }));
        document.dispatchEvent(name === "drop" ? new DragEvent("drop", { dataTransfer: d })
          : new ClipboardEvent("paste", { clipboardData: d })); }"""
    with open_page() as (page, troubles):
        start(page, server)
        for number, name in enumerate(("drop", "paste")):
            page.evaluate(put, [name, list(encoded(pixels(60, 90, number)))])
            page.wait_for_selector(f'#name:text-is("{name}.png")')
        page.set_input_files("#file", tmp_path / "a.tif")  # Chromium cannot show it, the server can
        page.wait_for_selector('#name:text-is("a.tif")')
        middle = page.evaluate(
            'document.getElementById("picture").getContext("2d").getImageData(40, 50, 1, 1).data.slice(0, 3).join()'
        )
        assert middle == ",".join(str(value) for value in pixels(100, 80)[50, 40])
        assert not troubles


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone(server, dark):
    with open_page(390, 844, dark, has_touch=True) as (page, troubles):
        start(page, server)
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) <= 390
        take_sample(page)
        page.touchscreen.tap(*over(page, 0.62, 0.55))
        wait_for_attention(page)
        assert page.evaluate(wide) <= 390
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert light < 60 if dark else light > 200
        assert not troubles


def test_on_a_phone_long_names_stay_inside_and_errors_are_in_view(server, tmp_path):
    long = tmp_path / f"{'a_name_from_a_camera_' * 6}.png"
    long.write_bytes(encoded(pixels(60, 90)))
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with open_page(390, 844, has_touch=True) as (page, _):
        start(page, server)
        page.set_input_files("#file", long)
        page.wait_for_selector(f'#name:text-is("{long.name}")')
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.set_input_files("#file", tmp_path / "broken.jpg")
        page.wait_for_selector("#trouble:not([hidden])")
        area = page.evaluate("document.getElementById('trouble').getBoundingClientRect().toJSON()")
        assert area["top"] >= 0
        assert area["bottom"] <= 844
        page.goto(f"{server.url}/docs")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # a word that is broken is more than a line high
        names = page.evaluate("[...document.querySelectorAll('th code')].map(e => e.getClientRects().length)")
        assert set(names) == {1}


def test_on_a_phone_long_names_of_models_stay_inside_and_differ(tmp_path):
    models = []
    for run in ("a_run_of_last_week_with_a_very_long_name_indeed", "first", "second"):
        (tmp_path / run).mkdir()
        models.append(str(tiny_checkpoint(tmp_path / run / "best.safetensors", "dilated-fcn")))
    for given in (models[:1], models):
        with serving(*given) as running:
            for width in (390, 360):
                with open_page(width, 844, has_touch=True) as (page, troubles):
                    start(page, running)
                    page.wait_for_selector("#model:not(:empty)")
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                    link = page.locator("text=API").bounding_box()
                    assert link["x"] + link["width"] <= width
                    assert page.locator("#model").bounding_box()["height"] < 30  # one line
                    assert page.get_attribute("#model", "title") == models[0]
                    assert page.inner_text("#empty .for-touch") == "Tap to choose a picture."
                    assert not page.is_visible("#empty .for-mouse")
                    assert not troubles
                    if len(given) > 1:
                        names = page.locator("#models option").all_inner_texts()
                        assert names[1:] == ["first/best", "second/best"]
                        page.select_option("#models", models[2])
                        page.wait_for_selector(f'#models[title="{models[2]}"]')


def test_token_and_a_model_without_attention(plain):
    with open_page() as (page, troubles):
        start(page, plain)
        page.wait_for_selector("#token[open]")
        page.fill("#token-text", "wrong")
        page.click("text=Go on")
        page.wait_for_selector('#token-title:has-text("not the right one")')
        page.fill("#token-text", "a secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:not(:empty)")
        page.set_input_files("#file", sample_picture())
        page.wait_for_selector("#result:not([hidden]):not(.stale)")
        page.mouse.click(*over(page, 0.5, 0.5))
        assert "torch checkpoint" in page.inner_text("#attention-text")
        assert [each for each in troubles if "401" not in each] == []


def test_token_from_the_address(plain):
    with open_page() as (page, troubles):
        start(page, plain, "#token=a%20secret")
        page.wait_for_selector("#model:not(:empty)")
        assert "secret" not in page.url
        assert not troubles
