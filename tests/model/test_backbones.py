"""Backbones: strides, dilations, field of view, and public weights under their public names."""

import argparse
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ordnet
from ordnet.errors import OrdnetError
from ordnet.model import weights
from ordnet.model.build import BACKBONES as NAMES
from ordnet.model.build import make_backbone

RESNETS = [name for name in NAMES if name.startswith("resnet")]


@pytest.mark.parametrize("output_stride", [8, 16])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("tiny", "mobilenet_v2_short")])
def test_sizes(name, output_stride):
    with torch.device("meta"):
        backbone = make_backbone(name, output_stride)
        *_, third, last = backbone(torch.empty(1, 3, 97, 64))
    expected = (-(-97 // output_stride), -(-64 // output_stride))
    assert (third.shape[1], last.shape[1]) == backbone.channels[-2:]
    assert tuple(last.shape[2:]) == expected
    assert tuple(third.shape[2:]) == expected


# What the literature gives for the classifiers (in millions), less their last layer.
PARAMETERS = {"resnet18": 11.177, "resnet34": 21.285, "resnet50": 23.508, "resnet101": 42.500, "resnet152": 58.144}


@pytest.mark.parametrize(("name", "millions"), PARAMETERS.items())
def test_parameter_counts(name, millions):
    with torch.device("meta"):
        count = sum(p.numel() for p in make_backbone(name).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=6e-4)


def test_mobilenet_parameter_count():
    with torch.device("meta"):
        count = sum(p.numel() for p in make_backbone("mobilenet_v2").parameters())
    # 3,504,872 of the classifier, less its 1280x1000 layer with bias and the 320→1280 convolution with its norm
    assert count == 3_504_872 - 1_281_000 - (320 * 1280 + 2 * 1280)


def test_the_full_mobilenet_ends_in_what_the_classifier_reads(tmp_path):
    """All parameters but the classifier's own, and the same maps as the shorter form before the last one."""
    full, usual = make_backbone("mobilenet_v2_full", 32).eval(), make_backbone("mobilenet_v2", 32).eval()
    assert sum(p.numel() for p in full.parameters()) == 3_504_872 - 1_281_000
    assert (full.strides, full.channels) == ((4, 8, 16, 32), (24, 32, 96, 1280))
    file = weights.read(save(full.state_dict(), tmp_path / "w.safetensors"))
    assert weights.load(usual, file).complete
    image = torch.randn(1, 3, 70, 64)
    with torch.no_grad():
        *maps, top = full(image)
        *others, last = usual(image)
        for one, other in zip(maps, others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(top, full.features[18](last), rtol=0, atol=0)


def test_the_short_mobilenet_is_the_beginning_of_the_long_one(tmp_path):
    long, short = make_backbone("mobilenet_v2").eval(), make_backbone("mobilenet_v2_short").eval()
    file = weights.read(save(stored("mobilenet_v2"), tmp_path / "w.safetensors"))
    assert not weights.load(make_backbone("mobilenet_v2_short"), file).random
    long.load_state_dict(short.state_dict(), strict=False)
    image = torch.randn(1, 3, 61, 40)
    with torch.no_grad():
        third, last = short(image)
        torch.testing.assert_close(last, long.features[:7](image), rtol=0, atol=0)
    assert short.channels == (third.shape[1], last.shape[1]) == (24, 32)
    assert last.shape[2:] == (8, 5)
    with pytest.raises(OrdnetError, match="output stride 8"):
        make_backbone("mobilenet_v2_short", 16)


@pytest.mark.parametrize("name", RESNETS)
def test_dilations(name):
    """First block of layer3 has dilation 1, the rest 2; first block of layer4 has 2, the rest 4."""
    with torch.device("meta"):
        backbone = make_backbone(name, 8)
    for layer, first, rest in ((backbone.layer2, 1, 1), (backbone.layer3, 1, 2), (backbone.layer4, 2, 4)):
        assert {block.conv2.dilation[0] for block in layer[:1]} == {first}
        assert {block.conv2.dilation[0] for block in layer[1:]} == {rest}
    with torch.device("meta"):
        backbone = make_backbone(name, 16)
    assert [block.conv2.dilation[0] for block in backbone.layer4][:2] == [1, 2]
    assert {block.conv2.dilation[0] for block in backbone.layer3} == {1}


def test_deep_stem():
    with torch.device("meta"):
        convolutions = [m for m in make_backbone("resnet50s").conv1 if isinstance(m, torch.nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.stride[0]) for c in convolutions] == [
        (3, 64, 2),
        (64, 64, 1),
        (64, 128, 1),
    ]


@pytest.mark.parametrize("stride_on", ["conv1", "conv2"])
def test_where_the_stride_sits(stride_on):
    with torch.device("meta"):
        block = make_backbone("resnet50", stride_on=stride_on).layer2[0]
    other = {"conv1": "conv2", "conv2": "conv1"}[stride_on]
    assert getattr(block, stride_on).stride == (2, 2)
    assert getattr(block, other).stride == (1, 1)


def test_tiny_sees_at_most_32_pixels():
    """Measured by gradient: which pixels can change the scores at one position of the head's map."""
    net = ordnet.build("dilated-fcn", classes=2, backbone="tiny").eval().double()
    for parameter in net.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 1)  # nothing cancels, no ReLU is off
    image = torch.rand(1, 3, 96, 96, dtype=torch.float64, requires_grad=True)
    net.small_scores(image)[0, :, 12, 12].sum().backward()
    rows = image.grad.abs().sum(dim=(0, 1, 3)).nonzero()
    columns = image.grad.abs().sum(dim=(0, 1, 2)).nonzero()
    assert rows.max() - rows.min() + 1 == columns.max() - columns.min() + 1 == 31


# ---- weights -------------------------------------------------------------------------------------------------


def stored(name):
    torch.manual_seed(1)
    state = {k: v.clone() for k, v in make_backbone(name).state_dict().items()}
    return {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in state.items()}


def assert_loaded(backbone, state):
    for key, tensor in backbone.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            assert torch.equal(tensor, state[key]), key


def save(state, path, **metadata):
    if path.suffix == ".safetensors":
        save_file(state, path, metadata or None)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_load_and_report(name, ending, tmp_path):
    state = stored(name)
    head = {"fc.weight": torch.zeros(10, 512), "classifier.1.bias": torch.zeros(10)}
    path = save({**state, **head}, tmp_path / f"w.{ending}")
    backbone = make_backbone(name)
    report = weights.load(backbone, weights.read(path), name)
    assert report.complete
    assert sorted(report.classifier) == sorted(head)
    assert report.leftover == []
    assert_loaded(backbone, state)


def test_wrapped_and_nested(tmp_path):
    state = stored("resnet18")
    path = save({"epoch": 3, "state_dict": {f"module.backbone.{k}": v for k, v in state.items()}}, tmp_path / "w.pth")
    backbone = make_backbone("resnet18")
    weights.load(backbone, weights.read(path))
    assert_loaded(backbone, state)


def test_timm_mobilenet_names(tmp_path):
    """timm's names, spelt out for the first and the last blocks as its mobilenetv2_100 has them."""
    state = stored("mobilenet_v2")
    layers = weights._timm_mobilenet_layers()
    assert layers["bn1"] == "features.0.1"
    assert layers["blocks.0.0.conv_dw"] == "features.1.conv.0.0"
    assert layers["blocks.1.0.conv_pw"] == "features.2.conv.0.0"
    assert layers["blocks.3.1.conv_dw"] == "features.8.conv.1.0"
    assert layers["blocks.6.0.conv_pwl"] == "features.17.conv.2"
    back = {v: k for k, v in layers.items()}
    renamed = {f"{back[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": v for key, v in state.items()}
    backbone = make_backbone("mobilenet_v2")
    assert weights.load(backbone, weights.read(save(renamed, tmp_path / "timm.safetensors"))).complete
    assert_loaded(backbone, state)


def test_a_gap_is_said_aloud(tmp_path):
    state = stored("resnet18")
    del state["layer4.1.bn2.bias"]
    state["layer4.1.bn2.weight"] = torch.zeros(7)
    state["surprise"] = torch.zeros(1)
    backbone = make_backbone("resnet18")
    with pytest.warns(UserWarning, match=r"98 tensors loaded; 1 left at random .*; 1 did not fit .*; 1 not used"):
        report = weights.load(backbone, weights.read(save(state, tmp_path / "w.safetensors")), "resnet18")
    assert report.random == ["layer4.1.bn2.bias"]
    assert report.misfit == ["layer4.1.bn2.weight: (7,) in the file, (512,) in the backbone"]
    assert report.leftover == ["surprise"]


@pytest.mark.parametrize("wrong", ["resnet34", "resnet18s-like", "mobilenet_v2"])
def test_a_file_of_another_network_is_refused(wrong, tmp_path):
    state = stored("resnet18")
    if wrong == "resnet18s-like":
        state = {f"deep.{k}": v for k, v in state.items()}
    path = save(state, tmp_path / "w.safetensors")
    target = "resnet18" if wrong == "resnet18s-like" else wrong
    with pytest.raises(OrdnetError, match=f"does not hold the weights of {target}"):
        ordnet.build("dilated-fcn", classes=2, backbone=target, weights=str(path))


def test_stride_comes_from_the_file(tmp_path):
    with torch.device("meta"):
        keys = make_backbone("resnet50").state_dict()
    state = {k: torch.zeros(v.shape) for k, v in keys.items()}
    path = str(save(state, tmp_path / "w.safetensors", stride_on="conv1"))
    net = ordnet.build("dilated-fcn", classes=2, backbone="resnet50", weights=path)
    assert net.backbone.layer2[0].conv1.stride == (2, 2)
    assert net.config.stride_on == "conv1"
    net = ordnet.build("dilated-fcn", classes=2, backbone="resnet50", weights=path, stride_on="conv2")
    assert net.backbone.layer2[0].conv2.stride == (2, 2)


def test_unreadable_files(tmp_path):
    good = save(stored("resnet18"), tmp_path / "w.safetensors").read_bytes()
    cases = {
        "none.pth": (None, "no weight file at"),
        "cut.safetensors": (good[:1000], "not a readable safetensors file"),
        "cut.pth": (b"PK\x03\x04 no", "cannot be read as plain tensors"),
        "text.txt": (b"hello", "expected a .safetensors, .pth or .pt file"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(OrdnetError, match=message):
            weights.read(tmp_path / name)


def whole_checkpoints(state):
    """Whole checkpoints as other people's training code writes them, by file name."""
    numpy_score = np.float64(0.512)
    encoding = {
        "epoch": 49,
        "state_dict": {
            **{f"pretrained.{key}": value for key, value in state.items()},
            "head.conv5.0.weight": torch.zeros(2), "auxlayer.conv5.0.weight": torch.zeros(2),
        },
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.01, "params": [0, 1]}]},
        "best_pred": numpy_score,
    }  # fmt: skip
    mmseg = {
        "meta": {"mmseg_version": "1.2.2", "CLASSES": ("wall", "sky"), "PALETTE": [[1, 2, 3]], "epoch": 3},
        "state_dict": OrderedDict(
            **{f"backbone.{key}": value for key, value in state.items()},
            **{"decode_head.conv_seg.weight": torch.zeros(2), "auxiliary_head.conv_seg.bias": torch.zeros(2)},
        ),
        "message_hub": {"log_scalars": {"train/lr": np.array([0.1, 0.2])}, "iter": np.int64(7)},
    }
    timm = {"epoch": 1, "arch": "resnet18", "state_dict": state, "args": argparse.Namespace(lr=0.1), "metric": 71.2}
    torchvision = {"model": {f"backbone.{key}": value for key, value in state.items()}, "epoch": 2}
    return {
        "model_best.pth.tar": encoding, "iter_80000.pth": mmseg, "checkpoint-1.pth.tar": timm,
        "model_29.pth": torchvision,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["model_best.pth.tar", "iter_80000.pth", "checkpoint-1.pth.tar", "model_29.pth"])
@pytest.mark.parametrize("form", ["zip", "legacy", "legacy, numpy 1"])
def test_whole_checkpoints_of_others(name, form, tmp_path):
    state = stored("tiny")
    torch.save(whole_checkpoints(state)[name], tmp_path / name, _use_new_zipfile_serialization=form == "zip")
    if "numpy 1" in form:  # the module had another name
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content.replace(b"cnumpy._core.", b"cnumpy.core."))
    backbone = make_backbone("tiny")
    report = weights.load(backbone, weights.read(tmp_path / name), "tiny")
    assert report.complete and report.leftover == []
    assert_loaded(backbone, state)


def test_mmsegmentation_names_of_mobilenet(tmp_path):
    """Spelt out for some layers as its MobileNetV2 has them: a convolution and its norm in each step."""
    layers = weights._mmseg_mobilenet_layers()
    assert layers["layer1.0.conv.0.bn"] == "features.1.conv.0.1"
    assert layers["layer1.0.conv.1.conv"] == "features.1.conv.1"
    assert layers["layer2.1.conv.1.conv"] == "features.3.conv.1.0"
    assert layers["layer7.0.conv.2.bn"] == "features.17.conv.3"
    state = stored("mobilenet_v2")
    back = {ours: theirs for theirs, ours in layers.items()}
    renamed = {f"backbone.{back[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": v for key, v in state.items()}
    backbone = make_backbone("mobilenet_v2")
    path = save({"meta": {}, "state_dict": renamed}, tmp_path / "mmseg.pth")
    assert weights.load(backbone, weights.read(path)).complete
    assert_loaded(backbone, state)


class Calls:
    """Pickles as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_hostile_checkpoints_run_nothing(tmp_path):
    trace = tmp_path / "was-here"
    path = tmp_path / "model_best.pth.tar"
    for function, words in ((os.system, f"touch {trace}"), (exec, f"open('{trace}', 'w')"), (Path, str(trace))):
        for zipped in (True, False):
            content = {"state_dict": stored("tiny"), "best_pred": Calls(function, words)}
            torch.save(content, path, _use_new_zipfile_serialization=zipped)
            with pytest.raises(OrdnetError, match="never run"):
                weights.read(path)
    assert not trace.exists()


def test_a_stand_in_leads_nowhere(tmp_path):
    """getattr is allowed by name, but what is called is a stand-in: it gives neither attributes nor functions."""
    path = tmp_path / "w.pth"
    torch.save({"state_dict": stored("tiny"), "log": Calls(getattr, "words", "upper")}, path)
    assert weights.read(path).tensors
    dropped = weights._Dropped(os, "system")
    dropped.__setstate__({"a": 1})
    assert not callable(dropped) and vars(dropped) == {}


def test_pickled_objects_are_refused(tmp_path):
    torch.save({"net": torch.nn.Linear(1, 1)}, tmp_path / "whole.pth")
    with pytest.raises(OrdnetError, match="never run"):
        weights.read(tmp_path / "whole.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(OrdnetError, match="holds no state_dict"):
        weights.read(tmp_path / "list.pth")


def test_values_that_are_not_finite(tmp_path):
    state = stored("resnet18")
    state["conv1.weight"][0] = float("nan")
    with pytest.raises(OrdnetError, match=r"conv1\.weight holds values that are not finite"):
        weights.load(make_backbone("resnet18"), weights.read(save(state, tmp_path / "w.safetensors")))
