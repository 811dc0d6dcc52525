"""What a position attends to: the numbers against the literal block, the figure, the command."""

import dataclasses
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import ordnet
from ordnet.commands import app
from ordnet.errors import OrdnetError
from ordnet.inference.explain import Explainer, why_not
from ordnet.model import checkpoint
from ordnet.model.branches import patch_grid
from ordnet.model.pixels import padded, to_input
from ordnet.picture.attention_map import attention_figure

NAMES = ("sky", "tree", "road", "water")
COLOURS = ((70, 130, 180), (34, 100, 34), (128, 64, 128), (0, 60, 200))
ATTENDING = ("basic-sa", "basic-sa-mr", "basic-sa-rlr", "mr", "ordnet", "nonlocal", "danet")


def network(variant="ordnet", **chosen):
    torch.manual_seed(3)
    net = ordnet.build(variant, classes=4, backbone="tiny", neck=12, **chosen).eval()
    randomised(net.block)
    return net


def randomised(block):
    """Weights large enough for attention that differs from place to place."""
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return block


def make(variant="ordnet", chosen=None, **options):
    return ordnet.Parser(network(variant, **(chosen or {})), NAMES, COLOURS, device="cpu", **options)


def picture(height=45, width=67, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def block_input(net, pixels):
    with torch.inference_mode():
        return net.block_input(to_input(padded(pixels, net.least_side), net))


# ---- the numbers ---------------------------------------------------------------------------------------------

BASE = network()
BLOCKS = st.fixed_dictionaries(
    {
        "branches": st.sampled_from([("middle", "long"), ("middle",), ("long",)]),
        "gate": st.sampled_from(["out", "in", None]),
        "gate_norm": st.sampled_from(["sigmoid", "softmax"]),
        "gate_sum": st.sampled_from(["mean", "sum"]),
        "similarity": st.sampled_from(["dot", "softmax"]),
        "fusion": st.sampled_from(["concat", "sum"]),
        "patches": st.integers(1, 3),
    }
).filter(lambda c: not (c["similarity"] == "softmax" and c["gate"] == "in" and "long" in c["branches"]))


@settings(max_examples=25)
@given(BLOCKS, st.integers(1, 40), st.integers(1, 40), st.data())
def test_the_literal_block_is_rebuilt_from_the_weights(chosen, height, width, data):
    """x_i + fusion(Σ_j a_ij v_j, …) is what the literal block gives at i, whatever the settings and sizes."""
    net = BASE
    net.block = randomised(ordnet.OmniRange(12, 3, 5, form="literal", **chosen))
    pixels = picture(height, width)
    column, row = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    explainer = Explainer(net, pixels)
    found = explainer.at(column, row)
    i, j = explainer.places.position(column, row)
    block, x = net.block, block_input(net, pixels)
    with torch.inference_mode():
        outputs = []
        for branch, weights in ((block.middle, found.middle), (block.long, found.long)):
            assert (branch is None) == (weights is None)
            if branch is not None:
                v = branch.attention.value(x)[0]  # (E, h, w)
                y = (v * torch.from_numpy(np.nan_to_num(weights))).sum(dim=(1, 2))
                z = branch.attention.project(y[None, :, None, None])
                gated = branch is block.long and found.gate_here is not None
                outputs.append(z * found.gate_here if gated else z)
        rebuilt = x[0, :, i, j] + block.fuse(*outputs)[0, :, 0, 0]
        expected = block(x)[0, :, i, j]
        gate = block.gate_map(x)
    torch.testing.assert_close(rebuilt, expected, rtol=1e-3, atol=1e-3)
    assert (gate is None) == (found.gate is None) == (found.gate_here is None)
    if gate is not None:
        np.testing.assert_allclose(found.gate, gate[0, 0].numpy(), rtol=1e-5)
        assert found.gate_here == pytest.approx(gate[0, 0, i, j].item())
    if found.middle is not None:
        assert_nan_outside_its_patch(found, explainer.places, (i, j), chosen["patches"])
    if chosen["similarity"] == "softmax":
        for weights in (found.long, found.middle):
            assert weights is None or np.nansum(weights) == pytest.approx(1, abs=1e-5)


def assert_nan_outside_its_patch(found, places, position, patches):
    inside = np.zeros(found.middle.shape, bool)
    (region,) = [
        (rows, columns)
        for rows, columns in patch_grid(*places.shape, patches)
        if position[0] in range(rows.start, rows.stop) and position[1] in range(columns.start, columns.stop)
    ]
    inside[region] = True
    np.testing.assert_array_equal(~np.isnan(found.middle), inside)


def test_dot_weights_are_products_divided_by_the_positions():
    """Eq. 1–2 to the letter: q_i · k_j / N, with a patch's own N."""
    net, pixels = network(), picture(29, 38)
    found = Explainer(net, pixels).at(30, 3)
    x = block_input(net, pixels)
    i, j = found.places.position(30, 3)
    for branch, weights in ((net.block.long, found.long), (net.block.middle, found.middle)):
        with torch.inference_mode():
            q, k = (layer(x)[0] for layer in (branch.attention.query, branch.attention.key))
        known = ~np.isnan(weights)
        expected = torch.einsum("d,dhw->hw", q[:, i, j], k).numpy() / known.sum()
        np.testing.assert_allclose(weights[known], expected[known], rtol=1e-4, atol=1e-6)
        assert weights.dtype == np.float32
    assert (found.long < 0).any()  # signed


@pytest.mark.parametrize("variant", ["nonlocal", "danet"])
def test_rivals_attended_features_are_rebuilt(variant):
    net, pixels = network(variant), picture()
    found = Explainer(net, pixels).at(40, 20)
    i, j = found.places.position(40, 20)
    with torch.inference_mode():
        x = block_input(net, pixels)
        if variant == "nonlocal":
            x = net.block.reduce(x)
            expected, value = net.block.attention(x), net.block.attention.value
            finish = net.block.attention.project
        else:
            x = net.block.reduce_position(x)
            value, share = net.block.value, net.block.position_share
            expected = (net.block._position(x) - x) / share
            finish = torch.nn.Identity()
        y = (value(x)[0] * torch.from_numpy(found.long)).sum(dim=(1, 2))
        torch.testing.assert_close(
            finish(y[None, :, None, None])[0, :, 0, 0], expected[0, :, i, j], rtol=1e-3, atol=1e-3
        )
    assert (found.middle, found.gate, found.patch, found.similarity) == (None, None, None, "softmax")


def test_the_map_of_all_pairs_is_never_built():
    explainer = Explainer(network(key_channels=4), picture(512, 512))
    positions = explainer.places.shape[0] * explainer.places.shape[1]
    assert positions == 128 * 128
    explainer.at(0, 0)
    tracemalloc.start()
    explainer.at(300, 200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * positions  # ten numbers per position; the map would have 16,384


def test_the_explainer_keeps_neither_features_nor_network():
    explainer = Explainer(network(key_channels=4), picture())
    kept = [*vars(explainer).values(), *vars(explainer._long).values(), *vars(explainer._middle).values()]
    assert not any(isinstance(thing, torch.Tensor | torch.nn.Module) for thing in kept)


# ---- tiny and large pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (1, 30), (30, 1), (3, 4), (5, 5)])
def test_pictures_smaller_than_the_network_can_take(size):
    parse = make()(picture(*size))
    for x, y in {(0, 0), (size[1] - 1, size[0] - 1)}:
        found = parse.attention(x, y)
        assert np.isfinite(found.long).all()
        left, top, right, bottom = found.patch
        assert left <= x < right
        assert top <= y < bottom
        assert (right, bottom) <= (size[1], size[0])
        found.draw()
        json.dumps(found.figures())


def test_large_pictures_are_seen_smaller_at_their_own_coordinates():
    pixels = np.asarray(Image.fromarray(picture(20, 30)).resize((240, 160)))
    parse = make(whole_up_to=80 * 120)(pixels)
    found = parse.attention(200, 40)
    assert found.scale == pytest.approx(0.5, abs=0.01)
    assert found.figures()["width"] == 240
    assert found.figures()["scale"] == found.scale
    copy = np.asarray(Image.fromarray(pixels).resize((120, 80), Image.Resampling.BOX))
    expected = Explainer(make().net, copy).at(100, 20)
    np.testing.assert_allclose(found.long, expected.long, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.middle, expected.middle, rtol=1e-4, atol=1e-6)
    assert np.allclose(found.patch, np.array(expected.patch) * 2, atol=1)
    assert make()(pixels).attention(200, 40).scale == 1


@given(st.integers(1, 400), st.integers(1, 400), st.integers(100, 3000))
@settings(max_examples=15)
def test_what_the_network_sees_is_bounded(height, width, most):
    explainer = Explainer(network("basic-sa"), picture(height, width), most)
    assert explainer.places.padded[0] * explainer.places.padded[1] <= most
    assert explainer.at(width - 1, height - 1).x == width - 1


# ---- parser and parse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ATTENDING)
def test_every_variant_with_attention(variant):
    parser = make(variant)
    assert parser.explains
    found = parser(picture()).attention(12, 30)
    figures = found.figures()
    assert json.loads(json.dumps(figures)) == figures
    assert (figures["long"] is None) == (variant == "mr")
    assert (figures["middle"] is not None) == (variant in ("basic-sa-mr", "mr", "ordnet"))
    assert (figures["gate"] is not None) == (variant in ("basic-sa-rlr", "ordnet"))
    assert found.class_here == figures["class"] == NAMES[parser(picture()).labels[30, 12]]
    panels = 2 + sum(figures[part] is not None for part in ("long", "middle", "gate"))
    assert found.draw().width > 260 * panels


@pytest.mark.parametrize(
    ("variant", "reason"), [("dilated-fcn", "dilated-fcn has no attention"), ("interlaced", "attends in two steps")]
)
def test_variants_without_a_row_of_attention_say_why(variant, reason):
    parser = make(variant)
    assert not parser.explains
    with pytest.raises(OrdnetError, match=reason):
        parser(picture()).attention(3, 3)
    with pytest.raises(OrdnetError, match=reason):
        Explainer(network(variant), picture())
    assert "ordnet" in why_not(parser.net)


def test_folded_batch_norms_change_nothing():
    pixels = picture()
    found, expected = make()(pixels).attention(9, 9), Explainer(network(), pixels).at(9, 9)
    np.testing.assert_allclose(found.long, expected.long, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.gate, expected.gate, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (67, 0), (0, 45), (10**9, 3), (float("nan"), 3)])
def test_positions_outside_the_picture(place):
    with pytest.raises(OrdnetError, match="outside the picture of 67 x 45 pixels: x goes from 0 to 66, y from 0 to 44"):
        make()(picture()).attention(*place)


def test_a_parse_runs_the_network_once_for_all_positions():
    parse = make()(picture())
    made = []
    counted = dataclasses.replace(parse, compute_explainer=lambda: made.append(parse.compute_explainer()) or made[-1])
    assert not made
    counted.attention(1, 1)
    counted.attention(60, 40)
    assert len(made) == 1


def test_threads_share_an_explainer():
    explainer = Explainer(network(), picture())
    spots = [(x, y) for x in range(0, 67, 6) for y in range(0, 45, 6)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda spot: explainer.at(*spot), spots))
    for spot, seen in zip(spots, found, strict=True):
        assert (seen.x, seen.y) == spot
        np.testing.assert_array_equal(seen.middle, explainer.at(*spot).middle)


# ---- the figure ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 60), (300, 20), (20, 300), (60, 40), (1, 200)])
@pytest.mark.parametrize("count", [1, 6])
def test_figures_have_a_row_for_each_position(size, count):
    parse = make()(picture(*size))
    spots = [(round(k * (size[1] - 1) / 5), round(k * (size[0] - 1) / 5)) for k in range(count)]
    found = [parse.attention(x, y) for x, y in spots]
    one, drawn = found[0].draw(), attention_figure([attention.row() for attention in found])
    assert drawn.width == one.width
    assert (drawn.height - 64) == count * (one.height - 64)  # 64 px of titles
    edge = np.concatenate([np.asarray(drawn)[[0, -1]].reshape(-1, 3), np.asarray(drawn)[:, [0, -1]].reshape(-1, 3)])
    assert (edge == 255).all()  # nothing runs out of the sheet


def test_the_position_is_marked_in_every_panel():
    parse = make()(np.full((300, 400, 3), 90, np.uint8))  # drawn at its own size
    sheet = np.asarray(parse.attention(250, 100).draw()).astype(int)
    green = (abs(sheet - (60, 235, 90)).sum(axis=-1) == 0).sum(axis=0)
    columns = np.nonzero(green > 15)[0]  # the upright stroke of each cross
    assert np.unique(columns // 422).tolist() == [0, 1, 2, 3, 4]
    assert (abs(columns % 422 - 22 - 250) <= 1).all()


def test_a_long_class_name_is_cut():
    parser = ordnet.Parser(network(), ("a very long name of a class " * 4,) * 4, COLOURS, device="cpu")
    drawn = np.asarray(parser(picture(60, 20)).attention(1, 1).draw())
    assert (drawn[:, -22:] == 255).all()


# ---- the command ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    Image.fromarray(picture()).save(folder / "photo.png")
    for variant in ("ordnet", "dilated-fcn"):
        checkpoint.save(folder / f"{variant}.safetensors", network(variant), NAMES, COLOURS)
    return folder


def run(*words):
    app(["explain", *map(str, words)], standalone_mode=False)


def test_the_command_writes_figure_and_numbers(files, tmp_path, capsys):
    model, photo = files / "ordnet.safetensors", files / "photo.png"
    run(model, photo, "--at", "10,20", "--at", " 66 , 44 ", "--out", tmp_path / "a.png")
    record = json.loads((tmp_path / "a.json").read_text())
    assert [(known["x"], known["y"]) for known in record["at"]] == [(10, 20), (66, 44)]
    expected = ordnet.load(model)(photo).attention(66, 44)
    assert record["at"][1]["gate"]["here"] == pytest.approx(expected.gate_here)
    assert record["at"][1]["middle"]["patch"] == list(expected.patch)
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.size == attention_figure([expected.row()] * 2).size
    shown = capsys.readouterr().out
    assert f"10,20 {record['at'][0]['class']}; long range strongest at" in shown
    assert "a.png" in shown
    run(model, photo, "--at", "0,0", "--out", tmp_path / "b.jpg", "--json", tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["picture"] == str(photo)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.png", "b.jpg", "c.json"]


def test_what_others_wrote_is_not_overwritten(files, tmp_path):
    """The picture itself, and annotations that have the figure's name."""
    model, photo, at = files / "ordnet.safetensors", tmp_path / "photo.png", ("--at", "3,3")
    photo.write_bytes((files / "photo.png").read_bytes())
    with pytest.raises(OrdnetError, match=r"photo\.png is the picture itself"):
        run(model, photo, *at, "--out", tmp_path / "photo.png")
    with pytest.raises(OrdnetError, match="is the picture itself"):
        run(model, photo, *at, "--out", tmp_path / "a.png", "--json", photo)
    (tmp_path / "a.json").write_text('{"shapes": []}')
    with pytest.raises(OrdnetError, match=r"a\.json is in the way.*--json"):
        run(model, photo, *at, "--out", tmp_path / "a.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "photo.png"]
    assert (tmp_path / "a.json").read_text() == '{"shapes": []}'
    for _ in range(2):  # its own numbers are
        run(model, photo, *at, "--out", tmp_path / "b.png")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no position to explain: give one or more, such as --at 120,80"),
        (["--at", "12"], "--at 12: expected X,Y in whole pixels"),
        (["--at", "1,2,3"], "--at 1,2,3: expected X,Y"),
        (["--at", "a,b"], "--at a,b: expected X,Y"),
        (["--at", "1.5,2"], "--at 1.5,2: expected X,Y"),
        (["--at", ""], "expected X,Y"),
        (["--at", "٣,٤"], "expected X,Y"),
        (["--at", "67,0"], "position 67,0 lies outside the picture of 67 x 45 pixels"),
        (["--at", "-1,5"], "position -1,5 lies outside"),
        (["--at", "3,3", "--at", "3,45"], "position 3,45 lies outside"),
    ],
)
def test_positions_that_cannot_be_explained(files, tmp_path, words, message):
    with pytest.raises(OrdnetError, match=message):
        run(files / "ordnet.safetensors", files / "photo.png", *words, "--out", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_other_mistakes_are_named(files, tmp_path):
    model, photo, at = files / "ordnet.safetensors", files / "photo.png", ("--at", "3,3")
    with pytest.raises(OrdnetError, match="dilated-fcn has no attention"):
        run(files / "dilated-fcn.safetensors", photo, *at, "--out", tmp_path / "a.png")
    with pytest.raises(OrdnetError, match=r"expected a file that ends in \.png"):
        run(model, photo, *at, "--out", tmp_path / "a.txt")
    with pytest.raises(OrdnetError, match="is a folder: name a file"):
        run(model, photo, *at, "--out", tmp_path / "a.png", "--json", tmp_path)
    with pytest.raises(OrdnetError, match="name two files"):
        run(model, photo, *at, "--out", tmp_path / "a.png", "--json", tmp_path / "a.png")
    with pytest.raises(OrdnetError, match=r"none\.png"):
        run(model, files / "none.png", *at, "--out", tmp_path / "a.png")
    with pytest.raises(OrdnetError, match="no model 'nothing'"):
        run("nothing", photo, *at, "--out", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variant", ["ordnet", "basic-sa-rlr", "mr", "danet", "nonlocal"])
@pytest.mark.parametrize("size", [(1, 1), (37, 52)])
def test_a_parse_that_kept_its_attention_gives_the_same(variant, size):
    torch.manual_seed(0)
    net = ordnet.build(variant, classes=3, backbone="tiny").eval()
    parser = ordnet.Parser(net, ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (99, 99, 99)))
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    passes = []
    parser.net.backbone.register_forward_hook(lambda *_: passes.append(1))
    kept = parser(pixels, attention=True)
    place = size[1] // 2, size[0] // 2
    ours = kept.attention(*place)
    assert len(passes) == 1  # the network ran once
    theirs = parser(pixels).attention(*place)
    np.testing.assert_array_equal(kept.labels, parser(pixels).labels)
    for one, other in ((ours.long, theirs.long), (ours.middle, theirs.middle), (ours.gate, theirs.gate)):
        if one is None or other is None:
            assert one is other
        else:
            np.testing.assert_array_equal(one, other)


# ---- what is said about the numbers ---------------------------------------------------------------------------


def test_the_strongest_weight_is_the_largest_in_magnitude_with_its_sign():
    found = make()(picture()).attention(20, 10)
    weights = found.long.copy()
    weights[:] = -0.001
    weights[2, 3] = -0.033  # the largest signed weight is -0.001
    told = dataclasses.replace(found, long=weights)
    x, y, weight = told.strongest(weights)
    assert weight == pytest.approx(-0.033)
    assert (x, y) == found.places.pixel(2, 3)
    assert told.figures()["long"]["weight"] == pytest.approx(-0.033)
    assert told.figures()["long"]["strongest"] == [x, y]
    assert any("strongest -0.033" in note for note in told.row().maps[0].notes)


def test_bars_fit_the_data_and_zero_stays_neutral():
    found = make()(picture()).attention(20, 10)
    only_negative = dataclasses.replace(found, long=-np.abs(found.long) - 0.01)
    scale = only_negative.row().maps[0].scale
    assert (scale.start, scale.end) == (pytest.approx(only_negative.long.min()), 0)
    assert scale.low == -scale.high  # so that zero has the middle colour


@pytest.mark.parametrize(
    ("value", "closed", "colour"), [(1e-6, True, "dark"), (0.5, False, "middle"), (0.999, False, "bright")]
)
def test_a_closed_gate_looks_and_reads_closed(value, closed, colour):
    found = make()(picture()).attention(20, 10)
    gate = np.full_like(found.gate, value)
    told = dataclasses.replace(found, gate=gate, gate_here=value)
    assert told.closed is closed
    assert told.figures()["gate"]["closed"] is closed
    long, gates = told.row().maps[0], told.row().maps[-1]
    assert bool(long.stamp) is closed
    low, high = gates.scale.low, gates.scale.high
    assert 0 <= low < high <= 1
    assert high - low >= 0.2 - 1e-9
    share = (value - low) / (high - low)
    assert {"dark": share < 0.01, "middle": 0.4 < share < 0.6, "bright": share > 0.99}[colour]
    assert told.draw().size == found.draw().size


def test_a_softmax_gate_is_measured_by_what_an_even_one_would_let_through():
    found = make(chosen={"gate_norm": "softmax"})(picture()).attention(20, 10)
    even = 1 / found.gate.size
    assert not dataclasses.replace(found, gate_here=even).closed
    assert dataclasses.replace(found, gate_here=even / 1000).closed
