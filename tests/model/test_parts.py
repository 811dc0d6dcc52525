"""Parts answer for themselves: a block and a backbone that nobody else has heard of go all the way."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ordnet
from ordnet.config import Settings, override
from ordnet.errors import OrdnetError
from ordnet.inference import stream
from ordnet.inference.onnx import export
from ordnet.model import build, checkpoint
from ordnet.model.network import for_inference
from ordnet.model.parts import Backbone, Block, Explanation, Rows, conv_norm
from ordnet.model.pixels import to_input
from ordnet.recipes import settings_of
from ordnet.training.loop import train_with


class ToyBackbone(Backbone):
    """Three maps, at 1/2, 1/4 and 1/8."""

    strides = (2, 4, 8)
    channels = (6, 10, 14)

    def __init__(self) -> None:
        super().__init__()
        widths = (3, *self.channels)
        self.parts = nn.ModuleList(
            nn.Sequential(*conv_norm(before, after, 3, stride=2), nn.ReLU()) for before, after in pairwise(widths)
        )

    def stages(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return list(self.parts)


class ToyBlock(Block):
    """Softmax attention over the whole map, in its plainest form."""

    builds_maps = True
    unexplained = None
    adds_context = True
    whole_only = "it attends with a softmax"

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.query, self.key, self.value = (nn.Conv2d(channels, n, 1) for n in (4, 4, channels))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        return x + (v @ (q.mT @ k).softmax(dim=2).mT).unflatten(2, x.shape[2:])

    def explain(self, x: Tensor) -> Explanation:
        return Explanation(long=Rows(self.query(x), self.key(x), 1.0, softmax=True))


class Mute(Block):
    """A block that answers no question at all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(build.OTHER_BLOCKS, "toy", ToyBlock)
    monkeypatch.setitem(build.OTHER_BLOCKS, "mute", Mute)
    monkeypatch.setitem(build.BACKBONES, "toy", lambda stride, stride_on: ToyBackbone())


@pytest.mark.parametrize("decoder", ["plain", "fine", "dense"])
def test_train_save_load_stream_explain_export(tmp_path, decoder):
    settings = override(
        Settings(),
        ["data.name=scenes", "data.limit=4", "data.workers=0", "training.epochs=1", "training.batch_size=2",
         "training.crop=64", "evaluation.limit=2", "model.variant=toy", "model.backbone=toy", "model.weights=none",
         f"model.decoder={decoder}"],
    )  # fmt: skip
    run = train_with(settings, tmp_path / "run")
    record = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()][-1]
    assert record["added"] > 0  # its vitals were taken

    parser = ordnet.load(run.folder / "last.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (75, 90, 3), dtype=np.uint8)
    parse = parser(pixels)
    assert parse.labels.shape == (75, 90)
    assert parser.net.stride == (8 if decoder == "plain" else 2)
    weights = parse.attention(40, 30).long
    assert weights.sum() == pytest.approx(1, abs=1e-4)

    with pytest.warns(UserWarning, match=r"toy cannot be streamed exactly: it attends with a softmax"):
        streamed = stream.labels(parser.net, pixels, tile=128)
    np.testing.assert_array_equal(streamed, parse.labels)

    done = export.export(run.folder / "last.safetensors", tmp_path / "toy.onnx")
    found = ordnet.load(done.path)(pixels).labels
    assert (found == parse.labels).mean() > 0.999


def test_recipes_take_a_new_block_though_they_set_up_another():
    changes = ["model.variant=mute", "model.backbone=toy", "model.weights=none", "model.output_stride=null"]
    for recipe in ("folder-default", "scenes-tiny"):
        assert isinstance(build.build_from(override(settings_of(recipe), changes).model, 3).block, Mute)


def test_a_block_that_answers_nothing_still_works_and_says_what_it_cannot(tmp_path):
    net = ordnet.build("mute", classes=3, backbone="toy").eval()
    names, colours = ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (99, 0, 0))
    checkpoint.save(tmp_path / "mute.safetensors", net, names, colours)
    parser = ordnet.load(tmp_path / "mute.safetensors")
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(tmp_path / "black.png")
    parse = parser(tmp_path / "black.png")
    with torch.inference_mode():
        image = to_input(parse.pixels, parser.net)
        np.testing.assert_array_equal(parse.labels, parser.net(image)[0].argmax(0))
    with pytest.raises(OrdnetError, match="mute has no attention to show; use a model of another variant"):
        parse.attention(3, 3)
    with pytest.raises(OrdnetError, match="no gate that could be switched off"):
        net.block.without("gate")


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50s", "mobilenet_v2", "mobilenet_v2_full", "mobilenet_v2_short", "tiny"]
)
def test_pyramids_say_what_they_are(name):
    backbone = build.make_backbone(name).eval()
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, 73, 98))
        some = backbone(torch.randn(1, 3, 73, 98), levels=(0, -1))
    assert list(backbone.strides) == sorted(backbone.strides)
    assert [m.shape[1] for m in maps] == list(backbone.channels)
    assert [tuple(m.shape[2:]) for m in maps] == [(-(-73 // s), -(-98 // s)) for s in backbone.strides]
    assert [m.shape for m in some] == [maps[0].shape, maps[-1].shape]


@pytest.mark.parametrize("variant", ["dilated-fcn", "ordnet", "danet"])
@pytest.mark.parametrize("output_stride", [8, 16, 32])
def test_the_fine_decoder_ends_at_a_quarter(variant, output_stride):
    net = ordnet.build(
        variant,
        classes=3,
        backbone="mobilenet_v2",
        output_stride=output_stride,
        decoder="fine",
        neck=16,
        auxiliary=True,
    ).eval()
    image = torch.randn(1, 3, 77, 101)
    with torch.no_grad():
        small = net.small_scores(image)
        scores, auxiliary = net.training_scores(image)
        assert tuple(small.shape) == (1, 3, 20, 26)
        torch.testing.assert_close(scores, net(image))
        assert auxiliary.shape == scores.shape == (1, 3, 77, 101)


def plain_join(net, image):
    """The block's input by its definition: maps brought to the neck's width, the coarser one enlarged and added."""
    maps = net.backbone(image)
    x = net.neck.laterals[-1](maps[-1])
    for lateral, level in zip(list(net.neck.laterals)[-2::-1], net.neck.levels[::-1], strict=True):
        finer = lateral(maps[level])
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        x = x[:, :, : finer.shape[2], : finer.shape[3]] + finer
    return x.relu()


@pytest.mark.parametrize(("backbone", "block_stride"), [("mobilenet_v2_full", 16), ("resnet18", 16), ("resnet18", 8)])
@pytest.mark.parametrize("variant", ["dilated-fcn", "ordnet"])
def test_the_block_works_on_joined_maps(tmp_path, backbone, block_stride, variant):
    torch.manual_seed(0)
    net = ordnet.build(
        variant, classes=3, backbone=backbone, output_stride=32, neck=16, block_stride=block_stride, decoder="dense",
        align_corners=False, auxiliary=True,
    ).eval()  # fmt: skip
    image = torch.randn(1, 3, 77, 101)
    with torch.no_grad():
        features = net.block_input(image)
        torch.testing.assert_close(features, plain_join(net, image))
        assert features.shape == (1, 16, -(-77 // block_stride), -(-101 // block_stride))
        scores, auxiliary = net.training_scores(image)
        torch.testing.assert_close(scores, net(image))
        assert auxiliary.shape == scores.shape == (1, 3, 77, 101)
        torch.testing.assert_close(for_inference(net)(image), scores, rtol=1e-3, atol=1e-4)
    assert net.least_side == (net.block.patches - 1) * block_stride + 1
    checkpoint.save(tmp_path / "net.safetensors", net, ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (99, 0, 0)))
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.load(tmp_path / "net.safetensors").net(image), scores)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"output_stride": 32, "block_stride": 16}, r"joins maps of several widths: give model\.neck"),
        ({"output_stride": 32, "block_stride": 12, "neck": 8}, r"block_stride is 12: .* 32, its finer ones 4, 8, 16"),
    ],
)
def test_a_block_stride_that_there_is_not(settings, says):
    with pytest.raises(OrdnetError, match=says):
        ordnet.build("ordnet", classes=3, backbone="resnet18", **settings)


def test_a_block_stride_coarser_than_the_last_map_joins_nothing():
    net = ordnet.build("ordnet", classes=3, backbone="resnet18", output_stride=8, block_stride=16)
    assert net.block_stride == 8 and isinstance(net.neck, nn.Identity)


@pytest.mark.parametrize("joined", [{}, {"block_stride": 4}])
def test_the_living_block_and_the_fine_decoder_are_exported(tmp_path, joined):
    torch.manual_seed(2)
    net = ordnet.build(
        "ordnet", classes=3, backbone="toy", neck=12, decoder="fine", align_corners=False, **joined,
        gate_logits="standard", logit_scale="root", patches=2,
    ).eval()  # fmt: skip
    checkpoint.save(tmp_path / "net.safetensors", net, ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (99, 0, 0)))
    done = export.export(tmp_path / "net.safetensors", tmp_path / "net.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (71, 98, 3), dtype=np.uint8)
    ours = ordnet.load(tmp_path / "net.safetensors")(pixels).labels
    assert (ordnet.load(done.path)(pixels).labels == ours).mean() > 0.999
