"""Networks made ready for inference give the same scores."""

import copy

import pytest
import torch
from torch import nn

import ordnet
from ordnet.model.network import for_inference


def trained_looking(net):
    """Batch norms with statistics, weights and biases that are not the identity."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.3, 0.7)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net


def same_scores(net, size=(65, 72)):
    ready = for_inference(net)
    image = torch.randn(1, 3, *size)
    with torch.no_grad():
        expected, found = copy.deepcopy(net).eval()(image), ready(image)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    return ready


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "resnet50s", "mobilenet_v2", "tiny"])
def test_every_kind_of_backbone(backbone):
    net = trained_looking(ordnet.build("ordnet", classes=5, backbone=backbone, neck=16, auxiliary=True))
    ready = same_scores(net)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ready.modules())


@pytest.mark.parametrize("variant", ordnet.variants())
def test_every_variant(variant):
    ready = same_scores(trained_looking(ordnet.build(variant, classes=4, backbone="tiny")), (40, 52))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ready.modules())


@pytest.mark.parametrize("settings", [{"fusion": "scale"}, {"similarity": "softmax"}, {"form": "literal"}])
def test_every_path_through_the_block(settings):
    same_scores(trained_looking(ordnet.build("ordnet", classes=4, backbone="tiny", **settings)), (40, 52))


def test_the_original_is_left_alone():
    net = trained_looking(ordnet.build("ordnet", classes=3, backbone="tiny"))
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    ready = for_inference(net)
    assert net.training
    assert not ready.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert list(before) == list(net.state_dict())
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
    assert {id(p) for p in ready.parameters()}.isdisjoint({id(p) for p in net.parameters()})


def test_batch_norms_without_a_convolution_before_them_stay():
    net = trained_looking(ordnet.build("dilated-fcn", classes=3, backbone="tiny"))
    net.neck = nn.Sequential(nn.ReLU(), trained_looking(nn.Sequential(nn.BatchNorm2d(64)))[0])
    ready = same_scores(net)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in ready.modules()) == 1
