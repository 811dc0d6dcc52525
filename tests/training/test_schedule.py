import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ordnet.config import TrainingConfig
from ordnet.errors import OrdnetError
from ordnet.training.step import make_optimizer, pace, parameter_groups, poly, set_rate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 2)
        self.first = self.backbone[0]  # a second way to the same weights
        self.scale = nn.Parameter(torch.ones(1))


def test_poly_falls_from_one_to_zero():
    factors = [poly(step, 40, 0.9) for step in range(45)]
    assert factors[0] == 1
    assert factors[20] == pytest.approx(0.5**0.9)
    assert factors[:41] == sorted(set(factors[:41]), reverse=True)
    assert factors[40:] == [0] * 5


@given(total=st.integers(1, 10**6), power=st.floats(0.1, 3), part=st.floats(0, 1))
def test_poly_stays_within_bounds(total, power, part):
    assert 0 <= poly(int(part * total), total, power) <= 1


def test_groups_hold_every_parameter_once():
    net = Net()
    groups = {group["name"]: group for group in parameter_groups(net, TrainingConfig(rate=0.004, batch_size=8))}
    assert {id(p) for p in groups["backbone"]["params"]} == {id(p) for p in net.backbone.parameters()}
    assert {id(p) for p in groups["head"]["params"]} == {id(p) for p in (*net.head.parameters(), net.scale)}
    assert sum(len(group["params"]) for group in groups.values()) == len(list(net.parameters()))
    assert groups["backbone"]["lr"] == pytest.approx(0.002)
    assert groups["head"]["lr"] == pytest.approx(0.02)
    assert {group["weight_decay"] for group in groups.values()} == {1e-4}


def test_frozen_parts_and_plain_modules():
    net = Net()
    net.backbone.requires_grad_(False)
    assert [group["name"] for group in parameter_groups(net, TrainingConfig())] == ["head"]
    assert [group["name"] for group in parameter_groups(nn.Linear(2, 2), TrainingConfig())] == ["head"]


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_has_the_settings(name, kind):
    config = TrainingConfig(optimizer=name, momentum=0.8, weight_decay=0.01)
    optimizer = make_optimizer(Net(), config)
    assert type(optimizer) is kind
    for group in optimizer.param_groups:
        assert group["weight_decay"] == 0.01
        assert group.get("momentum", 0.8) == 0.8


def test_rates_keep_their_proportion_and_survive_resuming():
    config = TrainingConfig(rate=0.016, batch_size=16, head_rate=10, power=0.9)
    optimizer = make_optimizer(Net(), config)
    for step in range(5):
        set_rate(optimizer, step, 10, config)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.016 * 0.6**0.9, 0.16 * 0.6**0.9])
    resumed = make_optimizer(Net(), config)
    resumed.load_state_dict(optimizer.state_dict())
    for either in (optimizer, resumed):
        set_rate(either, 7, 10, config)
    assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in optimizer.param_groups]
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.016 * 0.3**0.9)


def test_longer_runs_learn_more_slowly():
    """By the root of their length, at most twice as fast and at least half as fast as the settings say."""
    config = TrainingConfig(rate=0.016, rate_steps=700)
    assert [pace(steps, config) for steps in (2800, 700, 400, 175, 10)] == pytest.approx([0.5, 1, (7 / 4) ** 0.5, 2, 2])
    assert pace(10**6, config) == 0.5 and pace(0, config) == 1 and pace(10**6, TrainingConfig()) == 1
    optimizer = make_optimizer(Net(), config)
    set_rate(optimizer, 0, 2800, config)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.008)
    set_rate(optimizer, 0, 600, config, steps=175)  # 600 seconds
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.032)


def test_one_step_moves_by_the_rate():
    net = Net()
    config = TrainingConfig(rate=0.1, weight_decay=0, momentum=0, head_rate=10)
    optimizer = make_optimizer(net, config)
    set_rate(optimizer, 0, 10, config)
    before = [p.detach().clone() for p in (net.backbone[0].weight, net.head.weight)]
    (net.backbone[0].weight.sum() + net.head.weight.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(before[0] - net.backbone[0].weight, torch.full_like(before[0], 0.1))
    torch.testing.assert_close(before[1] - net.head.weight, torch.full_like(before[1], 1.0))


def test_queries_and_keys_may_learn_at_a_rate_of_their_own():
    import ordnet

    net = ordnet.build("ordnet", classes=2, backbone="tiny")
    settings = TrainingConfig(rate=0.001, head_rate=4.0, qk_rate=0.1)
    groups = {group["name"]: group for group in parameter_groups(net, settings)}
    assert groups["queries and keys"]["lr"] == pytest.approx(0.0004)
    named = dict(net.named_parameters())
    apart = {name for name, p in named.items() if any(p is q for q in groups["queries and keys"]["params"])}
    assert apart == {name for name in named if ".query." in name or ".key." in name} != set()
    assert sum(len(group["params"]) for group in groups.values()) == len(named)
    assert [group["name"] for group in parameter_groups(net, TrainingConfig())] == ["backbone", "head"]


def test_a_block_that_adds_to_its_input_may_learn_slowly():
    import ordnet

    settings = TrainingConfig(rate=0.001, head_rate=4.0, block_rate=0.1, qk_rate=0.5)
    net = ordnet.build("ordnet", classes=2, backbone="tiny")
    groups = {group["name"]: group for group in parameter_groups(net, settings)}
    assert groups["block"]["lr"] == pytest.approx(0.0004) and groups["queries and keys"]["lr"] == pytest.approx(0.0002)
    slow = [*groups["block"]["params"], *groups["queries and keys"]["params"]]
    assert {id(p) for p in slow} == {id(p) for p in net.block.parameters()}
    # blocks with norms of their own, and those that replace their input, learn as the head does
    other = parameter_groups(ordnet.build("danet", classes=2, backbone="tiny"), settings)
    assert [group["name"] for group in other] == ["backbone", "head"]


def test_rates_whose_product_is_no_number_of_32_bits_are_refused():
    with pytest.raises(OrdnetError, match=r"multiply to 1e\+40, more than 32 bits"):
        parameter_groups(nn.Linear(2, 2), TrainingConfig(rate=1e30, batch_size=16, head_rate=1e10))
