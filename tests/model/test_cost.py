"""What training costs: counts against the real thing, estimates against what must hold whatever the assumptions."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from ordnet.commands import app
from ordnet.config import ModelConfig
from ordnet.model import flops
from ordnet.model.build import build_from
from ordnet.model.flops import COUNTS, GPUS, SHARE, counted, estimate, training_cost
from ordnet.recipes import recipe_of

FCN = "pcontext-r50-dilated-fcn"


def test_counts_are_those_of_a_real_training_pass():
    """Operations of a forward and a backward pass that are computed, and the bytes that torch keeps between them."""
    net = build_from(ModelConfig(variant="ordnet", backbone="tiny", dropout=0.0), 5).train()
    own = {parameter.data_ptr() for parameter in net.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    image = torch.zeros(1, 3, 64, 64)
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            scores, _ = net.training_scores(image, True)
        scores.sum().backward()
    found = training_cost(net, 64)
    # the first layer passes no gradient on to the picture
    assert counter.get_total_flops() <= found.operations <= 1.15 * counter.get_total_flops()
    assert found.kept == pytest.approx(sum(t.untyped_storage().nbytes() for t in kept.values()), rel=0.01)
    assert found.parameters == sum(parameter.numel() for parameter in net.parameters())
    assert all(parameter.device.type == "cpu" for parameter in net.parameters())  # the network is left alone


def test_more_gpus_are_never_slower_in_one_host_and_wires_cost_something():
    recipe = recipe_of(FCN)
    for gpu in GPUS:
        rows = [estimate(recipe, gpu, count) for count in COUNTS]
        assert rows[0].wire == rows[0].traffic == 0
        assert rows[0].step == max(rows[0].network, rows[0].loader)
        hours = [row.hours for row, count in zip(rows, COUNTS, strict=True) if count <= flops.HOST]
        assert hours == sorted(hours, reverse=True)
        assert all(row.step >= max(row.network, row.loader) for row in rows)
        assert [row.batch for row in rows] == [16, 16, 16, 16, 16, 32, 64]


def test_an_estimate_is_what_its_assumptions_say():
    """Worked out by hand for 4 V100s: operations over the share of the peak, a ring of 4, two exchanges a norm."""
    recipe, gpu = recipe_of(FCN), next(gpu for gpu in GPUS if gpu.name == "V100")
    cost, at = counted(recipe), estimate(recipe, gpu, 4)
    assert at.network == pytest.approx(4 * cost.operations / (SHARE * 125e12))
    assert at.loader == pytest.approx(4 / 800)
    sent = 1.5 * 4 * cost.parameters
    assert at.wire == pytest.approx(sent / 150e9 + 2 * cost.norms * 30e-6)
    assert at.traffic == pytest.approx(sent / at.step)
    assert at.hours == pytest.approx(50 * 312 * at.step / 3600)
    assert at.memory == pytest.approx(12 * cost.parameters + 4 * cost.kept / 2)
    hundred = estimate(recipe, gpu, 4, data=100)
    assert hundred.hours == pytest.approx(100 * at.hours, rel=0.01) and hundred.step == at.step


def test_the_bottleneck_moves(monkeypatch):
    recipe, gpu = recipe_of(FCN), GPUS[-1]
    assert estimate(recipe, gpu, 1).bottleneck == "network"
    assert estimate(recipe, gpu, 64).bottleneck == "wire"
    monkeypatch.setattr(flops, "LOADED", 1)
    assert estimate(recipe, gpu, 1).bottleneck == "loader"


def test_the_command_says_that_it_estimates():
    done = CliRunner().invoke(app, ["recipes", FCN, "--cost"])
    assert done.exit_code == 0
    assert "An estimate, never measured" in done.output and "64 *" in done.output and "H100" in done.output
