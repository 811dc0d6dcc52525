"""One contract for every variant: forward, backward, odd sizes, batch of one, both modes, save and load."""

import pytest
import torch

import ordnet
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from ordnet.model.build import OTHER_BLOCKS

NAMES, COLOURS = ("sky", "ground", "thing"), ((0, 0, 255), (0, 128, 0), (255, 0, 0))


def make(variant, **settings):
    return ordnet.build(variant, classes=3, **{"backbone": "tiny", **settings})


@pytest.fixture(params=ordnet.variants())
def variant(request):
    return request.param


def test_forward_any_size(variant):
    net = make(variant).eval()
    for size in ((32, 32), (33, 47), (61, 9), (8, 8)):
        scores = net(torch.randn(1, 3, *size))
        assert scores.shape == (1, 3, *size)
        assert torch.isfinite(scores).all()


def test_backward_reaches_every_parameter(variant):
    net = make(variant, auxiliary=True).train()
    if variant == "danet":  # its shares start at zero, and so does the gradient behind them
        torch.nn.init.constant_(net.block.position_share, 0.5)
        torch.nn.init.constant_(net.block.channel_share, 0.5)
    scores, auxiliary = net.training_scores(torch.randn(2, 3, 40, 36))
    assert auxiliary.shape == scores.shape == (2, 3, 40, 36)
    (scores.square().mean() + auxiliary.square().mean()).backward()
    without = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    # a constant added to every key's product with all queries is no contribution to softmax, but these have none
    assert [name for name in without if not name.endswith("key.bias")] == []


@pytest.mark.parametrize("name", ["nonlocal", "interlaced", "danet", "aspp", "ppm"])
def test_other_methods_reduce_channels_and_never_widen_them(name):
    full = 256 if name == "aspp" else 512
    for channels in (24, full, 2048):
        with torch.device("meta"):
            assert OTHER_BLOCKS[name](channels).out_channels == min(channels, full)


def test_batched_equals_single(variant):
    net = make(variant).eval().double()
    images = torch.randn(3, 3, 24, 28, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(images), torch.cat([net(image[None]) for image in images]))


def test_scores_are_all_a_network_returns(variant):
    net = make(variant).eval()
    image = torch.randn(1, 3, 24, 24)
    assert isinstance(net(image), torch.Tensor)
    scores, auxiliary = net.training_scores(image)
    assert auxiliary is None
    torch.testing.assert_close(scores, net(image))


def test_save_and_load(variant, tmp_path):
    net = make(variant, neck=24).train()
    net(torch.randn(2, 3, 32, 32))  # moves the running statistics
    path = tmp_path / "net.safetensors"
    checkpoint.save(path, net, NAMES, COLOURS, {"epoch": 3})
    back = checkpoint.load(path)
    assert (back.classes, back.colours, back.about) == (NAMES, COLOURS, {"epoch": 3})
    assert not back.net.training
    image = torch.randn(1, 3, 33, 30)
    torch.testing.assert_close(back.net(image), net.eval()(image), rtol=0, atol=0)
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_patches_by_name():
    for patches in (1, 2, 4):
        assert make("mr", patches=patches).block.patches == patches


def test_mr_without_patches_is_basic_sa():
    """The paper's MR_nopatch row equals its Basic SA row."""
    one, plain = make("mr", patches=1).eval(), make("basic-sa").eval()
    plain.load_state_dict({key.replace("block.middle", "block.long"): v for key, v in one.state_dict().items()})
    image = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(one(image), plain(image), rtol=0, atol=1e-6)


@pytest.mark.parametrize("build", [{"gate": None}, {"gate": "none"}])
def test_a_gate_can_be_switched_off(build):
    assert make("ordnet", **build).block.long.gate is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "orbnet"}, "there is no variant 'orbnet'; there are dilated-fcn"),
        ({"variant": "ordnet", "backbone": "vgg"}, "there is no backbone 'vgg'; there are resnet18"),
        ({"variant": "ordnet", "patchez": 2}, "patchez: there is no such setting"),
        ({"variant": "dilated-fcn", "patches": 2}, "patches would have no effect"),
        ({"variant": "danet", "gate": "out"}, "gate would have no effect"),
        ({"variant": "ordnet", "output_stride": 8}, "tiny backbone has output stride 4"),
        ({"variant": "ordnet", "backbone": "resnet18", "output_stride": 4}, "output stride 8 or 16"),
    ],
)
def test_wrong_names_are_refused(arguments, message):
    with pytest.raises(OrdnetError, match=message):
        make(**arguments)


def test_wrong_class_counts_are_refused(tmp_path):
    with pytest.raises(OrdnetError, match="at least one class"):
        ordnet.build("ordnet", classes=0, backbone="tiny")
    with pytest.raises(OrdnetError, match="the network has 3 classes, got 2 names"):
        checkpoint.save(tmp_path / "x.safetensors", make("ordnet"), NAMES[:2], COLOURS[:2])
