"""Parts of an HTML page on a narrow screen."""

from ordnet.picture import page
from tests.browser import needs_browser, open_page

LONG = "folder:/home/somebody/pictures/2026/some_experiment_of_last_week_with_a_very_long_name/labelled"


@needs_browser
def test_tables_fit_a_phone_and_keep_their_words_whole(tmp_path):
    rows = [
        ["data.name", LONG, "folder:PATH"],
        ["model.backbone", "mobilenet_v2", "resnet50s"],
        ["model.weights", "/weights/mobilenet_v2_imagenet_torchvision_1k_v2.safetensors", "imagenet"],
        ["evaluation.protocol", "multiscale", "whole"],
    ]
    made = page.page(
        "a run", [page.section("Settings", page.table(rows, ["changed", "here", "default"]))], f"In {LONG}"
    )
    (tmp_path / "page.html").write_text(made, encoding="utf-8")
    with open_page(390) as (browser, troubles):
        browser.goto(f"file://{tmp_path / 'page.html'}")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        heights = browser.evaluate(
            "[...document.querySelectorAll('tbody tr')].map(row => row.getBoundingClientRect().height)"
        )
        assert heights[1] == heights[3] < 40  # one line each
        assert not troubles


def test_cells_are_escaped_and_paths_may_break_after_a_slash():
    shown = page.table([["a<b", "x/y\\z"]])
    assert "a&lt;b" in shown
    assert "x/<wbr>y\\<wbr>z" in shown
