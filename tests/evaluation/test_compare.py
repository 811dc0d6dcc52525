"""Models side by side: which pictures, what is said about them, and what the figure shows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import ordnet
from ordnet.commands import app
from ordnet.data.scenes import CLASSES
from ordnet.errors import OrdnetError
from ordnet.evaluation import comparison as module
from ordnet.evaluation.comparison import Comparison, draw, spread, titles
from ordnet.model import checkpoint
from ordnet.picture.grid import Cell, ScaleBar, cell_size, fitted, grid
from ordnet.picture.overlay import colour_map
from tests.small_data import write_folder

VARIANTS = ("dilated-fcn", "basic-sa-rlr", "ordnet")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Untrained networks for scenes, each in a run folder of its own."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, variant in enumerate(VARIANTS):
        torch.manual_seed(seed)
        net = ordnet.build(variant, classes=len(CLASSES), backbone="tiny")
        checkpoint.save(folder / variant / "best.safetensors", net, CLASSES.names, CLASSES.colours)
    return {variant: str(folder / variant / "best.safetensors") for variant in VARIANTS}


@pytest.fixture(scope="module")
def two(models):
    """Two models on the first pictures of the split."""
    compared = Comparison([models["dilated-fcn"], models["ordnet"]], "scenes")
    compared.dataset.ids = compared.dataset.ids[:12]
    return compared


def run(*words):
    app(["compare", *map(str, words)], standalone_mode=False)


@given(st.integers(1, 3000), st.integers(1, 200))
def test_spread_is_even(total, count):
    places = spread(total, count)
    assert len(places) == min(total, count)
    assert places[0] >= 0 and places[-1] < total
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


def test_titles_say_the_run_or_the_file():
    assert titles(["outdoor", "runs/a/best.safetensors", "b.safetensors"]) == ["outdoor", "a", "b"]
    assert titles(["a/best.safetensors", "a/last.safetensors", "c"]) == ["a/best", "a/last", "c"]
    assert titles(["x/a/best.safetensors", "y/a/best.safetensors"]) == ["1: a/best", "2: a/best"]
    assert titles(["best.safetensors"]) == ["best"]


@given(st.lists(st.sampled_from(["a", "b", "a/best.safetensors", "x/a/last.safetensors", "y/a.safetensors"])))
def test_titles_are_unique(models):
    assert len(set(titles(models))) == len(models)


def test_accuracy_is_that_of_the_parse(two):
    seen = two.look(3)
    for parser, labels, accuracy in zip(two.parsers, seen.results, seen.accuracies, strict=True):
        np.testing.assert_array_equal(labels, parser(two.dataset.image(3)).labels)
        counts = seen.truth != 255
        assert accuracy == pytest.approx((labels == seen.truth)[counts].mean())


@pytest.mark.parametrize("how", ["worst", "difference"])
def test_the_striking_pictures_come_first(two, how):
    right = np.array([two.look(index).accuracies for index in range(12)])
    striking = -right.mean(axis=1) if how == "worst" else np.ptp(right, axis=1)
    heard = []
    chosen = two.pick(how, 5, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (12, 12)
    np.testing.assert_allclose(striking[chosen], np.sort(striking)[::-1][:5])
    assert two.pick(how, 5) == chosen


def test_ranking_looks_at_a_limited_number(two, monkeypatch):
    monkeypatch.setattr(module, "MOST_RANKED", 4)
    assert sorted(two.pick("worst", 12)) == spread(12, 4)


def test_pictures_in_which_nothing_counts_are_not_ranked(two, monkeypatch):
    label = two.dataset.label
    monkeypatch.setattr(two.dataset, "label", lambda i: np.full_like(label(i), 255) if i % 2 else label(i))
    assert sorted(two.pick("difference", 12)) == [0, 2, 4, 6, 8, 10]
    assert draw(two, [1]).height > 0


def test_one_model_cannot_differ(models):
    with pytest.raises(OrdnetError, match="give two or more"):
        Comparison([models["ordnet"]], "scenes").pick("difference", 2)


def test_pictures_by_id(two):
    ids = two.dataset.ids
    assert two.find([ids[7], ids[2], ids[7]]) == [7, 2]
    with pytest.raises(OrdnetError, match=r"no picture 'val-00' ?; there are 12, such as val-00"):
        two.find(["val-00"])


def test_the_gate_is_that_of_the_first_model_that_has_one(models):
    both = Comparison([models[name] for name in VARIANTS], "scenes")
    assert both.gated() == 1
    pixels = np.asarray(both.dataset.image(0))
    block = both.parsers[1].net.block
    taken = []
    handle = block.register_forward_hook(lambda block, inputs, output: taken.append(block.gate_map(inputs[0])))
    both.parsers[1](pixels)
    handle.remove()
    small = taken[0][0, 0].numpy()
    np.testing.assert_allclose(both.gate(pixels, *small.shape).mean(), small.mean(), atol=1e-3)
    with pytest.raises(OrdnetError, match=r"none of the models has a gate \(dilated-fcn\).*ordnet"):
        Comparison([models["dilated-fcn"]], "scenes").gated()


def test_the_figure_shows_truth_and_results(two):
    """At full strength each column is its label map's colours, scaled by whole pixels' copies."""
    sheet = np.asarray(draw(two, [4, 9], strength=1))
    width, height = cell_size([(128, 128)] * 2, 4)
    for row, index in enumerate([4, 9]):
        seen = two.look(index)
        for column, labels in enumerate([seen.truth, *seen.results], 1):
            left, top = 20 + column * (width + 10), 56 + row * (height + 34)
            expected = colour_map(fitted(labels, (width, height)), CLASSES.colours)
            np.testing.assert_array_equal(sheet[top : top + height, left : left + width], expected)


def test_a_gate_is_one_more_column_and_a_bar(two):
    plain, gated = draw(two, [4]), draw(two, [4], gate=True)
    width = cell_size([(128, 128)], 5)[0]
    assert gated.width == 2 * 20 + 5 * width + 4 * 10
    assert plain.width == 2 * 20 + 4 * cell_size([(128, 128)], 4)[0] + 3 * 10


@given(st.integers(1, 400), st.integers(1, 400), st.integers(20, 300), st.integers(20, 300))
@settings(max_examples=50)
def test_pictures_fit_without_distortion(width, height, cell_width, cell_height):
    labels = (np.indices((height, width)).sum(axis=0) % 7 * 30).astype(np.uint8)
    small = fitted(labels, (cell_width, cell_height))
    tall, wide = small.shape
    assert wide <= cell_width and tall <= cell_height
    assert wide == cell_width or tall == cell_height
    assert abs(wide - tall * width / height) <= max(1, width / height) or min(wide, tall) == 1
    assert set(np.unique(small)) <= set(np.unique(labels))
    assert fitted(np.zeros((height, width, 3), np.uint8), (cell_width, cell_height)).shape == (tall, wide, 3)


def test_a_grid_of_odd_pictures():
    cells = [Cell(np.full((h, w, 3), 7, np.uint8), "words " * 40, False) for h, w in ((5, 200), (200, 5), (1, 1))]
    sheet = np.asarray(
        grid([cells], ["a title " * 20] * 3, 200, [("sky", (1, 2, 3))], "a note " * 90, ScaleBar(1, 0.2, 0.2))
    )
    assert (sheet == 7).all(axis=2).sum() == 2001
    assert (sheet == (1, 2, 3)).all(axis=2).any()
    assert sheet.shape[1] == 2 * 20 + 3 * 200 + 2 * 10


def test_the_command_writes_png_and_jpg(models, tmp_path, capsys):
    chosen = [models["dilated-fcn"], models["ordnet"], "--data", "scenes"]
    run(*chosen, "--n", 2, "--gate", "--out", tmp_path / "new" / "a.png")
    assert "2 of 256 pictures, evenly spread" in capsys.readouterr().out
    run(*chosen, "--ids", "val-0064, val-0192", "--out", tmp_path / "b.JPG")
    assert "2 of 256 pictures, as asked for" in capsys.readouterr().out
    with Image.open(tmp_path / "new" / "a.png") as a, Image.open(tmp_path / "b.JPG") as b:
        assert (a.format, b.format) == ("PNG", "JPEG")
        assert a.width > b.width
    run(*chosen, "--ids", "val-0064,val-0192", "--gate", "--out", tmp_path / "c.png")  # what --n 2 picks
    with Image.open(tmp_path / "new" / "a.png") as a, Image.open(tmp_path / "c.png") as c:
        rows = slice(0, 56 + 2 * (cell_size([(128, 128)], 5)[1] + 34))
        np.testing.assert_array_equal(np.asarray(a)[rows], np.asarray(c)[rows])


def test_pictures_of_many_sizes_and_fewer_than_usual(tmp_path, capsys):
    folder = write_folder(tmp_path / "set", train=2, val=3)
    for index, size in enumerate([(90, 30), (20, 70), (40, 32)]):
        for part in ("images", "labels"):
            path = folder / part / f"{2 + index:03}.png"
            Image.open(path).resize(size, Image.Resampling.NEAREST).save(path)
    net = ordnet.build("ordnet", classes=3, backbone="tiny")
    checkpoint.save(tmp_path / "m.safetensors", net, ("sky", "ground", "thing"), ((1, 2, 3),) * 3)
    words = [tmp_path / "m.safetensors", "--data", f"folder:{folder}", "--out", tmp_path / "a.png"]
    run(*words, "--pick", "worst")
    assert "the 3 worst of 3 pictures" in capsys.readouterr().out
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    assert (sheet == (112, 174, 232)).all(axis=2).any()  # the data set's sky in the legend, not the model's
    with pytest.raises(OrdnetError, match="--n 4: the val split has only 3"):
        run(*words, "--n", 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ordnet", "--data", "scenes", "--out", "a.gif"], r"ends in .png, .jpg, .jpeg"),
        (["ordnet", "--data", "scenes", "--out", "a"], r"ends in .png"),
        (["ordnet", "--data", "scenes", "--out", "a.png", "--ids", "val-0001", "--n", "3"], "--ids says which"),
        (["ordnet", "--data", "scenes", "--out", "a.png", "--ids", " , "], "names no picture"),
        (["ordnet", "--data", "scenes", "--out", "a.png", "--ids", "nine"], "no picture 'nine'"),
        (["ordnet", "--data", "scenes", "--out", "a.png", "--pick", "difference"], "give two or more"),
        (["dilated-fcn", "--data", "scenes", "--out", "a.png", "--gate"], "none of the models has a gate"),
        (["ordnet", "--data", "camels", "--out", "a.png"], "no data set 'camels'"),
        (["nowhere", "--data", "scenes", "--out", "a.png"], "no model 'nowhere'"),
        (["outdoor", "--data", "scenes", "--out", "a.png"], r"outdoor on scenes: .*different classes"),
    ],
)
def test_mistakes_are_refused_and_nothing_is_written(models, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OrdnetError, match=message):
        run(models.get(words[0], words[0]), *words[1:])
    assert list(tmp_path.iterdir()) == []
