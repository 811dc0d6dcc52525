"""The demo, with a training of seconds instead of minutes: one page with everything, and it runs twice."""

import json
import subprocess
import sys

import pytest

from ordnet.errors import OrdnetError
from ordnet.picture.page import page
from ordnet.study.demo import demo
from tests.browser import needs_browser, open_page

COMMAND = [sys.executable, "-m", "ordnet", "demo", "--set", "training.epochs=1", "--set", "data.limit=16", "--out"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "first"
    done = subprocess.run([*COMMAND, str(out)], capture_output=True, text=True, check=False, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_it_leaves_a_page_and_says_what_comes_next(made):
    out, said = made
    assert str(out / "report.html") in said
    assert "ordnet train folder-default --data folder:street" in said
    assert [f"{step} of 4" in said for step in (1, 2, 3, 4)] == [True] * 4
    for name in ("photo/china.overlay.png", "photo/attention.png", "ranges.png", "scenes.png"):
        assert (out / name).stat().st_size > 1000
    figures = json.loads((out / "ranges.json").read_text())
    assert [found["split"] for found in figures.values()] == ["test", "test"]
    text = (out / "report.html").read_text()
    for found in figures.values():
        assert f"{found['miou_by_range']['middle']:.3f}" in text
    assert "CC BY 2.0" in text


def test_a_second_time_nothing_is_trained(made):
    out, _ = made
    before = (out / "runs" / "ordnet" / "last.safetensors").stat().st_mtime_ns
    done = subprocess.run([*COMMAND, str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "runs" / "ordnet" / "last.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["report.html", "ranges.png", "scenes.png", "photo"])
def test_files_of_others_are_not_overwritten(tmp_path, name):
    (tmp_path / name).mkdir() if name == "photo" else (tmp_path / name).write_text("of others")
    with pytest.raises(OrdnetError, match=f"{name} is in the way: no demo wrote it"):
        demo(tmp_path, pytest.fail)  # nothing is begun
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_it_does_not_mix_with_a_training_run(tmp_path):
    for name in ("log.jsonl", "settings.yaml"):
        (tmp_path / name).write_text("")
    with pytest.raises(OrdnetError, match=r"log\.jsonl is in the way: .* is the folder of a training run"):
        demo(tmp_path, pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "settings.yaml"]


def test_a_demo_that_was_cut_off_or_is_older_continues(tmp_path, monkeypatch):
    """One that was cut off has a mark, one from before there was a mark has the page."""

    def stop(out):
        raise KeyboardInterrupt

    monkeypatch.setattr("ordnet.study.demo._photo", stop)
    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path, print)
    (tmp_path / "photo").mkdir()
    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path, print)
    (tmp_path / ".ordnet-demo").unlink()
    with pytest.raises(OrdnetError, match="photo is in the way"):
        demo(tmp_path, print)
    (tmp_path / "report.html").write_text(page("ordnet · demo", []))
    with pytest.raises(KeyboardInterrupt):
        demo(tmp_path, print)


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_the_page_in_a_browser(made, width, dark):
    out, _ = made
    with open_page(width, 900, dark) as (page, troubles):
        page.goto((out / "report.html").as_uri())
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert page.evaluate("document.images.length") >= 5
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        # all words are the page's own, none is drawn into a figure that shrinks; and nothing is cut off
        words = page.locator(".panels small")
        assert {"picture", "long range", "gate"} <= set(page.locator(".panels b").all_inner_texts())
        assert min(words.evaluate_all("all => all.map(e => parseFloat(getComputedStyle(e).fontSize))")) >= 11
        assert page.evaluate("[...document.images].every(i => i.getBoundingClientRect().right <= window.innerWidth)")
        assert not troubles
