"""timm's models as backbones: shapes, weights, training, inference, streaming."""

import sys
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ordnet
from ordnet.errors import OrdnetError
from ordnet.inference import stream
from ordnet.model import checkpoint, weights
from ordnet.model.build import make_backbone
from ordnet.model.network import for_inference
from ordnet.model.parts import receptive_field
from ordnet.model.pixels import to_input
from tests.small_data import CLASSES, small_settings, write_folder
from tests.timm_here import import_timm

timm = import_timm()
COLOURS = ((0, 0, 255), (0, 255, 0), (255, 0, 0))
# One of each kind, as small as timm has them for its own tests: residual; a stem of patches, which rounds down;
# squeeze-and-excitation; a transformer for pictures of one size; channels last and a stride of its own.
KINDS = ["test_resnet", "test_convnext3", "test_efficientnet", "test_vit", "test_mambaout"]


def make(name, output_stride=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_backbone(f"timm:{name}", output_stride)


def lively(net):
    """Norms that are not the identity, and a block that adds something."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1)
            torch.nn.init.normal_(module.bias, std=0.3)
            torch.nn.init.normal_(module.running_mean, std=0.3)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


@pytest.mark.parametrize("name", KINDS)
def test_shapes_of_any_picture(name):
    backbone = make(name).eval()
    for height, width in ((97, 65), (33, 130)):
        with torch.no_grad():
            *_, third, last = backbone(torch.randn(2, 3, height, width))
        assert (third.shape[1], last.shape[1]) == backbone.channels[-2:]
        for features, stride in zip((third, last), backbone.strides[-2:], strict=True):
            assert tuple(features.shape[2:]) == (-(-height // stride), -(-width // stride))


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_the_whole_model_land(name, tmp_path):
    """A file with timm's own names fills the backbone, which then gives what timm's model gives inside."""
    whole = lively(timm.create_model(name, pretrained=False, **({"dynamic_img_size": True} if "vit" in name else {})))
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    backbone = make(name, 16 if "vit" in name else 32).eval()
    report = weights.load(backbone, weights.read(tmp_path / "w.safetensors"), name)
    assert report.complete
    image = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        expected = whole.forward_intermediates(image, indices=2, intermediates_only=True)
        for found, wanted in zip(backbone(image)[-2:], expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_resnet50_is_our_resnet50():
    """The same weights in timm's and in our dilated network give the same features."""
    ours, theirs = lively(make_backbone("resnet50", 8)), make("resnet50", 8).eval()
    theirs.features.load_state_dict(ours.state_dict())
    image = torch.randn(1, 3, 48, 40)
    with torch.no_grad():
        for found, expected in zip(theirs(image)[-2:], ours(image)[-2:], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_output_stride_as_asked_or_said_aloud():
    assert make("test_resnet").output_stride == 8
    assert make("test_resnet", 16).output_stride == 16
    with pytest.warns(UserWarning, match="timm:test_vit has output stride 16; it cannot be given 8"):
        net = ordnet.build("ordnet", classes=2, backbone="timm:test_vit")
    assert net.config.output_stride == net.backbone.output_stride == 16
    with pytest.raises(OrdnetError, match=r"has output stride 16, and cannot be given 8; leave model\.output_stride"):
        make("test_vit", 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "has no model 'nonsense'"),
        ("resnet18x", "close to it are .*resnet18"),
        ("mixer_s32_224", r"does not give feature maps of pictures of any size \(Input height"),
        # some releases of timm say that they cannot, others fail at the first picture
        ("coat_tiny", r"does not give feature maps .*(features_only not implemented|Input height)"),
    ],
)
def test_what_cannot_be_a_backbone(name, message):
    with pytest.raises(OrdnetError, match=message):
        make(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "raise ModuleNotFoundError('no module named timm')",
            r"`timm`: pip install 'ordnet\[timm\]' \(no module named",
        ),
        ("raise RuntimeError('operator x does not exist')", "cannot be imported: operator x does not exist"),
    ],
)
def test_without_timm_the_message_says_why(content, message, tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text(content)
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OrdnetError, match=message):
        make("resnet18")


def test_train_save_load_predict_evaluate(tmp_path):
    from ordnet.training.loop import train_with

    folder = write_folder(tmp_path / "data")
    settings = small_settings(folder, "model.backbone=timm:test_resnet", "training.epochs=1", "model.auxiliary=true")
    run = train_with(settings, tmp_path / "run")
    loaded = checkpoint.load(run.best)
    assert loaded.net.config.backbone == "timm:test_resnet"
    assert loaded.net.config.weights is None
    figures = ordnet.evaluate(run.best, f"folder:{folder}").figures()
    assert figures["miou"] == pytest.approx(run.figures["miou"], abs=1e-6)
    parse = ordnet.load(run.best)(folder / "images" / "000.png")
    assert parse.labels.shape == (32, 40)


@pytest.mark.parametrize("name", KINDS)
def test_ready_for_inference_gives_the_same_scores(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = lively(ordnet.build("ordnet", classes=3, backbone=f"timm:{name}", neck=16))
    image = torch.randn(1, 3, 65, 72)
    with torch.no_grad():
        torch.testing.assert_close(for_inference(net)(image), net(image), rtol=1e-3, atol=1e-4)


def test_measured_reach():
    """Against what our own networks' layers say; None where no part can be had without the whole."""
    exact = receptive_field(make_backbone("mobilenet_v2", 16))
    assert exact <= make("mobilenetv2_100", 16).reach <= exact + 2 * 16
    assert make("test_efficientnet").reach is None  # squeeze-and-excitation averages over everything
    assert make("test_vit").reach is None


def test_windows_counted_from_the_corner_cannot_be_tiled():
    """As in Swin: every output sees 4 positions only, but which ones depends on where the picture begins."""

    class Windows(torch.nn.Conv2d):
        def forward(self, image):
            features = super().forward(image)
            average = torch.nn.functional.avg_pool2d(features, (1, 4), ceil_mode=True)
            return [features, average.repeat_interleave(4, dim=3)[..., : features.shape[3]]]

    backbone = make("test_resnet")
    backbone.features = Windows(3, 5, 8, stride=8)
    backbone.strides = (8, 8)
    assert backbone.reach is None


def test_streamed_is_what_one_pass_gives():
    net = for_inference(lively(ordnet.build("ordnet", classes=3, backbone="timm:test_resnet", neck=8)))
    pixels = np.random.default_rng(0).integers(0, 256, (150, 500, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = net(to_input(pixels, net))[0]
    found = stream.scores(net, pixels, tile=128)
    too_little = stream.scores(net, pixels, tile=128, halo=0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert (too_little - expected).abs().max() > 0.01


def test_what_cannot_be_streamed_is_said():
    net = lively(ordnet.build("ordnet", classes=3, backbone="timm:test_efficientnet", neck=8))
    pixels = np.random.default_rng(0).integers(0, 256, (64, 300, 3), dtype=np.uint8)
    with pytest.warns(UserWarning, match=r"timm:test_efficientnet cannot compute a part .* windows of 160 px"):
        assert stream.labels(net, pixels, tile=96, halo=32).shape == (64, 300)


def test_checkpoint_needs_nothing_but_the_file(tmp_path, monkeypatch):
    """Loading looks for no weights: not for the file the training began with, not on the network."""
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    net = ordnet.build("ordnet", classes=3, backbone="timm:test_resnet", weights=str(tmp_path / "w.safetensors"))
    checkpoint.save(tmp_path / "net.safetensors", net, CLASSES, COLOURS)
    (tmp_path / "w.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = checkpoint.load(tmp_path / "net.safetensors").net
    image = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        assert torch.equal(again(image), net.eval()(image))


def test_the_fine_decoder_goes_through_timm_maps():
    net = ordnet.build("ordnet", classes=3, backbone="timm:test_resnet", output_stride=32, neck=8, decoder="fine")
    net = lively(net)
    assert net.stride == 4
    pixels = np.random.default_rng(0).integers(0, 256, (150, 300, 3), dtype=np.uint8)
    with torch.inference_mode():
        whole = net(to_input(pixels, net))[0]
    assert whole.shape == (3, 150, 300)
    torch.testing.assert_close(stream.scores(net, pixels, tile=128), whole, rtol=1e-3, atol=1e-4)
