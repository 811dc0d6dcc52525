"""The report of a run: true figures, whatever the class names are, in a real browser; and never at the run's cost."""

import json
import re
import shutil
from html import unescape

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ordnet
from ordnet.config import Settings, override
from ordnet.data.catalogue import open_dataset
from ordnet.evaluation.confusion import Confusion
from ordnet.evaluation.evaluate import BestAndWorst, evaluate_network
from ordnet.model import checkpoint
from ordnet.model.pixels import KnownSize
from ordnet.picture.overlay import marked, most_frequent
from ordnet.picture.page import figure, page, section, text
from ordnet.training import state
from ordnet.training.environment import environment_rows
from ordnet.training.loop import train_with
from ordnet.training.monitor import in_words, watch
from ordnet.training.report import write
from ordnet.training.report.page import Example, RunReport, Shares, report_page
from ordnet.training.report.write import what_parts_are_worth
from tests.browser import needs_browser, open_page
from tests.small_data import small_settings, write_folder

HOSTILE = ('<script>document.title="taken"</script>', "x" * 300, '"quoted" & <b>天空</b> שמיים $a_$')
SECTIONS = ["Scores", "Curves", "IoU by class", "Confusions", "Best and worst pictures", "Attention",
            "Is the block alive?", "Data", "Settings", "Cost", "Environment"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own", val=9, classes=HOSTILE)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a <run>"
    train_with(small_settings(folder, "training.epochs=1"), out)
    return out


def many_classes(count=171):
    """A report of a run that nobody made: many classes, long names, ranges, a dark and a pale colour among them."""
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 9, (count, count)) + 400 * np.eye(count, dtype=int)
    matrix[:, -1] = matrix[-1] = 0
    labels = rng.integers(0, count, (30, 50)).astype(np.uint8)
    labels[:5] = 255
    example = Example("x" * 200, "words", rng.integers(0, 255, (30, 50, 3)).astype(np.uint8), labels, labels)
    return RunReport(
        title="t" * 150, names=[f"class {i} " + "very " * (i % 20) + "long" for i in range(count)],
        colours=[(0, 0, 0), (255, 255, 255), *[(i, 255 - i, 120) for i in range(2, count)]],
        ranges=["short", "middle", "long"] * (count // 3), figures={"miou": 0.5, "pixel_accuracy": None},
        headline="words", epochs=[{"epoch": 1, "loss": 1.0, "miou": 0.5}], matrix=matrix, best=[example],
        shares=Shares([1 / count] * count, [3] * count, "words"), data=[("data set", "folder:/" + "y" * 200)],
        changed=[("data.name", "folder:/" + "z" * 200, "scenes")],
    )  # fmt: skip


@pytest.fixture(scope="module")
def pages(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    shutil.copy(run / "report.html", path / "run.html")
    for count in (39, 171):
        (path / f"{count}.html").write_text(report_page(many_classes(count)), encoding="utf-8")
    return path


# ---- in a browser --------------------------------------------------------------------------------------------

LOW_CONTRAST = """() => {
  const parse = c => { const v = c.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v };
  const behind = e => {  // the colours below an element, laid over each other
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, c) => under.map((u, i) => u * (1 - c[3]) + c[i] * c[3]), [255, 255, 255]);
  };
  const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([e.tagName, e.textContent.slice(0, 30), ratio]);
  }
  return found;
}"""


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1200, True), (390, False)])
def test_in_a_browser(pages, width, dark):
    with open_page(width, 900, dark) as (browser, troubles):
        for name in ("run", "39", "171"):
            browser.goto((pages / f"{name}.html").as_uri())
            images = browser.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
            assert all(images), name
            assert len(images) >= (29 if name == "run" else 5)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
            assert not browser.evaluate("document.scripts.length"), name
            assert browser.evaluate(LOW_CONTRAST) == [], name
            paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 150) == dark
            if name == "run":
                assert browser.title() == "a <run>"
                assert [h.inner_text() for h in browser.query_selector_all("h2")] == SECTIONS
                shown = browser.inner_text("body")
                assert HOSTILE[0] in shown and "天空" in shown and "שמיים" in shown
                targets = browser.evaluate("[...document.querySelectorAll('nav a')].map(a => !!document.querySelector("
                                           "`[id='${a.hash.slice(1)}']`))")  # fmt: skip
                assert targets == [True] * len(SECTIONS)
                # the whole settings open on a click
                browser.click("summary")
                assert "save_minutes" in browser.inner_text("pre")
        # on paper it is dark ink on white, whatever the screen was
        browser.emulate_media(media="print")
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.evaluate(LOW_CONTRAST) == []
        assert not browser.is_visible("nav")
        assert troubles == []


# ---- what it says --------------------------------------------------------------------------------------------


def plain(html):
    """The page without its pictures and without the places where a path may break."""
    return re.sub(r'src="data:[^"]*"', "", html).replace("<wbr>", "").replace(" class=long", "")


def test_it_needs_nothing_else(run):
    html = (run / "report.html").read_text()
    assert set(re.findall(r'(?:src|href)="(?!data:image/|#)', html)) == set()
    assert "url(" not in plain(html) and "@import" not in html


def test_its_figures_are_the_log_s(run, folder):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    html = plain((run / "report.html").read_text())
    assert f"<dd>{records[-1]['miou']:.4f}</dd><dt>mIoU</dt>" in html
    assert f"<dd>{records[-1]['pixel_accuracy']:.4f}</dd><dt>pixel accuracy</dt>" in html
    for name, iou in records[-1]["per_class_iou"].items():
        assert f"{text(name)}</span>" in html
        assert f'<span class="value">{iou:.3f}</span>' in html
    assert "9 pictures of own, split val, with the protocol whole" in html
    assert html.count(f"{records[-1]['miou']:.4f}</dd>") == 1 and f"mIoU {records[-1]['miou']:.4f}" not in html
    assert "Counted over all 12 training labels" in html
    assert f"<td>{records[0]['torch']}</td>" in html
    assert f'<th scope="row">data.name</th><td>folder:{folder}</td><td>scenes</td>' in html
    parameters = sum(p.numel() for p in checkpoint.load(run / "last.safetensors").net.parameters())
    assert f"<td>{parameters:,}</td>" in html
    assert "peak memory" in html


def settings_rows(run):
    shown = plain((run / "report.html").read_text())
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td><td>–</td>', shown)
    return {unescape(name): unescape(value) for name, value in rows}


def test_it_says_what_the_settings_became(folder, tmp_path, monkeypatch):
    """`imagenet` is a file, or what stood in for it; a batch may be smaller than asked; a run may begin at random."""
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    words = ("training.epochs=1", "training.batch_size=8", "training.least_steps=20", "model.backbone=mobilenet_v2")
    out = train_with(small_settings(folder, *words, "model.weights=imagenet"), tmp_path / "stand-in").folder
    rows, start = settings_rows(out), json.loads((out / "log.jsonl").read_text().splitlines()[0])
    assert "the backbone of the shipped model `outdoor` stands in" in rows["backbone's weights"]
    assert rows["backbone's weights"] == start["weights"][0]
    assert rows["batch size"] == "4, 8 asked: few pictures" and start["batch_size"] == 4
    train_with(small_settings(folder, *words, "model.weights=imagenet", "training.epochs=2"), out, resume=True)
    assert settings_rows(out) == rows  # what it began with
    (out / "report.html").unlink()
    write.rebuild_report(out)
    assert settings_rows(out) == rows


def test_a_run_as_asked_has_no_such_rows(run):
    assert not {"backbone's weights", "batch size"} & set(settings_rows(run))


def test_a_start_at_random_is_said(folder, tmp_path):
    out = train_with(small_settings(folder, "training.epochs=1", "model.backbone=mobilenet_v2"), tmp_path).folder
    assert "mobilenet_v2 starts at random" in settings_rows(out)["backbone's weights"]


def test_a_network_without_attention(folder, tmp_path):
    html = (train_with(small_settings(folder, "model.variant=dilated-fcn", "training.epochs=1"), tmp_path).folder /
            "report.html").read_text()  # fmt: skip
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == [title for title in SECTIONS if title not in ("Attention", "Is the block alive?")]


def test_a_report_that_fails_does_not_cost_the_run(folder, tmp_path, capsys, monkeypatch):
    def fail(*parts):
        raise ValueError("no room\non the page")

    monkeypatch.setattr("ordnet.training.report.write.data_rows", fail)
    trained = train_with(small_settings(folder, "training.epochs=1"), tmp_path)
    said = capsys.readouterr().err
    assert len([line for line in said.splitlines() if "the report could not be written" in line]) == 1
    assert "Traceback" not in said
    assert trained.figures["images"] == 9
    assert trained.best.exists()
    assert state.load(tmp_path / "state", print)["progress"]["finished"]


def test_a_finished_run_gets_a_missing_report(run, folder, tmp_path, capsys):
    """And it is the one that training would have written."""
    out = tmp_path / run.name
    shutil.copytree(run, out)
    (out / "report.html").unlink()
    settings = small_settings(folder, "training.epochs=1")
    train_with(settings, out, resume=True)
    assert plain((out / "report.html").read_text()) == plain((run / "report.html").read_text())
    train_with(settings, out, resume=True)
    assert "nothing to do" in capsys.readouterr().err


def test_evaluation_shows_every_picture_once(run, folder):
    data = open_dataset(f"folder:{folder}", "val")
    seen, total = [], Confusion(len(HOSTILE))

    def look(index, image, truth, labels):
        seen.append(index)
        assert np.array_equal(image, np.asarray(data.image(index)))
        assert np.array_equal(truth, data.label(index))
        total.add(truth, labels)

    evaluation = evaluate_network(checkpoint.load(run / "last.safetensors").net, data, look=look)
    assert seen == list(range(9))
    assert np.array_equal(total.matrix, evaluation.confusion.matrix)


# ---- its parts -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 4))
def test_extremes(wrong, count):
    """As sorting all pictures by their accuracy would find them; none is both."""
    extremes = BestAndWorst(count)
    for index, pixels in enumerate(wrong):
        truth, labels = np.zeros((3, 5), np.uint8), np.zeros((3, 5), np.uint8)
        truth[0, :3] = 255  # never counts
        labels.flat[3 : 3 + pixels] = 1
        extremes.add(index, np.zeros((3, 5, 3), np.uint8), truth, labels)
    accuracies = sorted(1 - pixels / 12 for pixels in wrong)
    few = min(count, len(wrong) // 2)
    assert [seen.accuracy for seen in extremes.worst] == accuracies[:few]
    most = min(count, len(wrong) - few)
    assert [seen.accuracy for seen in extremes.best] == accuracies[::-1][:most]
    kept = [*extremes.worst, *extremes.best]
    assert len({seen.index for seen in kept}) == len(kept)
    for seen in kept:
        assert seen.accuracy == 1 - wrong[seen.index] / 12
        assert seen.mistake == ((0, 1, wrong[seen.index] / 12) if wrong[seen.index] else None)


def test_extremes_of_pictures_that_do_not_count_or_are_large():
    extremes = BestAndWorst(2)
    nothing = np.full((4, 4), 255, np.uint8)
    extremes.add(0, np.zeros((4, 4, 3), np.uint8), nothing, nothing)
    assert extremes.seen == 0 and not extremes.best
    large = np.zeros((1, 3000), np.uint8)
    extremes.add(1, np.zeros((1, 3000, 3), np.uint8), large, large)
    assert extremes.best[0].image.shape == (1, 640, 3)
    assert extremes.best[0].truth.shape == (1, 640)


@given(st.integers(1, 5), st.integers(1, 30), st.randoms(use_true_random=False))
def test_most_frequent_mistakes(classes, count, random):
    matrix = np.array([[random.randrange(4) for _ in range(classes)] for _ in range(classes)])
    found = most_frequent(matrix, count)
    wrong = {(t, p): matrix[t, p] for t in range(classes) for p in range(classes) if t != p and matrix[t, p]}
    assert [m.pixels for m in found] == sorted(wrong.values(), reverse=True)[:count]
    assert all(wrong[m.truth, m.taken_for] == m.pixels for m in found)


def test_wrong_pixels_are_red():
    truth = np.array([[0, 0, 255]], np.uint8)
    labels = np.array([[0, 1, 1]], np.uint8)
    right, wrong, ignored = marked(np.full((1, 3, 3), 100, np.uint8), truth, labels, 2)[0].astype(int)
    assert np.ptp(right) == 0 and np.ptp(ignored) == 0
    assert wrong[0] > 2 * max(wrong[1:])
    assert ignored.mean() < right.mean()


def test_vitals_in_words():
    idle = in_words({"added": 0.22, "varying": 0.06, "gate_mean": 0.5, "gate_spread": 0.01})
    assert "nearly idle: what it adds has 22% of its input's size, and 6% of that" in idle[0]
    assert "model.neck" in idle[1] and "hardly moves" in idle[2]
    alive = in_words({"added": 0.4, "varying": 0.9, "gate_mean": 0.4, "gate_spread": 0.3})
    assert "is alive" in alive[0] and "opens and closes" in alive[1]
    closed = in_words({"added": 0.4, "varying": 0.9, "gate_mean": 0.001, "gate_spread": 0.0})
    assert "lets next to nothing of the long range through" in closed[1]
    assert in_words({"loss": 1.0}) == []
    gate = {"added": 0.4, "varying": 0.9, "gate_mean": 0.001, "gate_spread": 0.0005, "gate_gradient": 0.004}
    assert "shut by accident" in in_words(gate)[-1] and "gate_logits=standard" in in_words(gate)[-1]
    unused = in_words({**gate, "gate_mean": 0.015, "gate_spread": 0.02, "gate_gradient": 0.05})
    assert "unused rather than stuck" in unused[-1] and "5.0% of a gradient passes it" in unused[-2]
    assert "wide open by accident" in in_words({**gate, "gate_mean": 0.999})[-1]
    assert len(in_words({**gate, "gate_mean": 0.5, "gate_gradient": 1.0})) == 2


@pytest.mark.parametrize("neck", [False, True])
def test_idle_words_know_how_long_the_run_was_and_what_the_model_has(neck):
    idle = {"added": 0.22, "varying": 0.06}
    short = in_words({**idle, "step": 36}, neck)
    assert "nearly idle so far" in short[0] and "too early to tell: 36 steps" in short[1]
    assert len(short) == 2 and "neck" not in " ".join(short) and "larger pictures" not in " ".join(short)
    assert "too early" in " ".join(in_words({**idle, "step": 299}, neck))
    long = " ".join(in_words({**idle, "step": 300}, neck))
    assert "too early" not in long and "so far" not in long and "larger pictures may help" in long
    assert ("model.neck" in long) != neck
    alive = in_words({"added": 0.4, "varying": 0.9, "step": 1}, neck)
    assert "is alive so far" in alive[0] and "too early to tell: 1 step," in alive[1]


def test_a_short_run_s_report_gives_no_advice(run):
    assert "too early to tell: 3 steps" in (run / "report.html").read_text()


def test_what_each_branch_is_worth(run, folder):
    """A part switched off scores as the command says; the network itself stays whole."""
    loaded = checkpoint.load(run / "last.safetensors")
    before = evaluate_network(loaded.net, data := open_dataset(f"folder:{folder}", "val")).miou
    rows, note = what_parts_are_worth(loaded.net, data, False, KnownSize())
    assert [row[0].split()[-1] for row in rows] == ["is", "range", "range", "open", "block"]
    assert rows[0][1] == f"{before:.4f}" and "9 pictures" in note
    without = ordnet.evaluate(run / "last.safetensors", f"folder:{folder}", without="middle").miou
    assert rows[1][1:] == (f"{without:.4f}", write._difference(without - before))
    assert evaluate_network(loaded.net, data).miou == before
    assert "What each branch is worth" in (run / "report.html").read_text()
    plain = ordnet.build("dilated-fcn", classes=3, backbone="tiny")
    assert what_parts_are_worth(plain, data, False, KnownSize()) == ([], "")


def test_a_difference_of_nothing_has_no_sign():
    shown = [write._difference(value) for value in (-0.00001, 0.0, 0.00001, -0.0123, 0.0123)]
    assert shown == ["0.0000"] * 3 + ["-0.0123", "+0.0123"]


@pytest.mark.parametrize("bias", [-20.0, 0.0])
def test_the_gradient_that_passes_the_gate(bias):
    """Against autograd: what arrives at the gate's bias, as a share of what a half open gate would let pass."""
    block = ordnet.OmniRange(8, gate_logits="standard")
    with torch.no_grad():
        block.long.gate_bias.fill_(bias)
    net = torch.nn.Module()
    net.block = block
    x = torch.randn(2, 8, 6, 6)
    with watch(net) as vitals:
        block(x)
    gate = block.gate_map(x)
    (slope,) = torch.autograd.grad(gate.sum(), block.long.gate_bias)
    assert vitals["gate_gradient"] == pytest.approx(4 * float(slope) / gate.numel(), abs=1e-5)
    assert (vitals["gate_gradient"] < 0.01) == (bias < 0)


def test_cost_over_resumptions(run):
    """The pause between two starts is no training."""
    net = checkpoint.load(run / "last.safetensors").net
    epoch = {"event": "epoch", "images_per_second": 5.0}
    records = [
        {"event": "start", "time": 1000.0}, {**epoch, "time": 1060.0},
        {"event": "resume", "time": 9000.0}, {**epoch, "time": 9090.0}, {**epoch, "time": 9160.0},
    ]  # fmt: skip
    rows = dict(write.cost_rows(records, net, crop=32))
    assert rows["time in all"] == "3 min 40 s, over 2 starts"
    assert rows["an epoch, with its evaluation"] == "1 min 10 s (median)"
    assert rows["operations for a picture of 32 x 32"].endswith("GFLOPs")


def test_an_environment_that_changed():
    records = [{"event": "start", "torch": "2.1", "commit": None}, {"event": "resume", "torch": "2.2"}]
    assert environment_rows(records) == [("torch", "2.1, then 2.2")]


def test_changed_settings():
    assert write.changed_settings(Settings()) == []
    changed = write.changed_settings(override(Settings(), ["training.rate=0.5", "data.limit=3", "data.scale=[1, 2]"]))
    assert set(changed) == {
        ("data.limit", "3", "–"), ("data.scale", "[1.0, 2.0]", "[0.5, 2.0]"), ("training.rate", "0.5", "0.001")
    }  # fmt: skip


@given(st.text())
def test_text_is_escaped(words):
    """It reads back as what it was, and has no way out of an element or of quotes."""
    import html

    shown = text(words)
    assert not set("<>\"'") & set(shown)
    harmless = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "�", words)
    assert html.unescape(shown) == harmless
    assert f"<h2>{shown}</h2>" in page("t", [section(words)])


def test_pictures_are_embedded(tmp_path):
    from PIL import Image

    assert "data:image/png;base64," in figure(Image.new("RGB", (20, 20)))
    assert "data:image/jpeg;base64," in figure(Image.new("RGB", (400, 300)))
    Image.new("RGB", (3, 3)).save(tmp_path / "x.png")
    assert '<img alt="a &amp; b"' in figure(tmp_path / "x.png", "a & b")
