"""The block against the paper's equations, and its two forms against each other.

The oracle computes Eq. 1, 2, 5 and 6 position by position in plain loops and matrices, from nothing but the weights.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ordnet
from ordnet.errors import OrdnetError
from ordnet.model.branches import join, patch_grid
from ordnet.model.omni_range import CHOICES

C, D, E = 12, 3, 5


def options():
    """Every combination of options that the block accepts."""
    names = ("branches", "gate", "gate_norm", "gate_sum", "fusion", "similarity")
    for values in itertools.product(*(CHOICES[name] for name in names), (True, False)):
        chosen = dict(zip((*names, "project"), values, strict=True))
        refused = chosen["similarity"] == "softmax" and chosen["gate"] == "in" and "long" in chosen["branches"]
        if not refused and (chosen["project"] or chosen["fusion"] == "concat"):
            yield chosen


OPTIONS = list(options())


def make(form="factored", patches=2, **chosen):
    block = ordnet.OmniRange(C, D, E, patches=patches, form=form, **chosen).double().eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def features(height=5, width=7, batch=2, dtype=torch.float64):
    return torch.randn(batch, C, height, width, dtype=dtype)


def forms(block):
    literal = copy.deepcopy(block)
    literal.form = "literal"
    return block, literal


def relative(a, b, x):
    """The largest difference, relative to the largest change the block makes."""
    return ((a - b).abs().max() / (b - x).abs().max()).item()


# ---- the equations -------------------------------------------------------------------------------------------


def dense(layer, x):
    """A 1x1 convolution on positions as rows."""
    return x @ layer.weight.detach().numpy()[:, :, 0, 0].T + layer.bias.detach().numpy()


def attend(attention, x, softmax):
    """Eq. 1–2 for the positions x (N, C) of one region: attended features, attention map."""
    q, k, v = dense(attention.query, x), dense(attention.key, x), dense(attention.value, x)
    n = len(x)
    attn = np.array([[q[i] @ k[j] for j in range(n)] for i in range(n)])
    if attention.logit_scale == "root" and not softmax:
        attn = attn / np.sqrt(D)
    if softmax:
        attn = np.exp(attn / np.sqrt(D))
        attn /= attn.sum(axis=1, keepdims=True)
        y = np.array([sum(attn[i, j] * v[j] for j in range(n)) for i in range(n)])
    else:
        y = np.array([sum(attn[i, j] * v[j] for j in range(n)) / n for i in range(n)])
    return (y if attention.project is None else dense(attention.project, y)), attn


def oracle(block, x, chosen, patches):
    """The whole block on one picture (C, H, W), straight from the paper, and from docs where it is not the paper's."""
    _, height, width = x.shape
    softmax = chosen["similarity"] == "softmax"
    outputs = []
    if "middle" in chosen["branches"]:
        made = {}
        bounds_h = [height * i // patches for i in range(patches + 1)]
        bounds_w = [width * i // patches for i in range(patches + 1)]
        for top, bottom in itertools.pairwise(bounds_h):
            for left, right in itertools.pairwise(bounds_w):
                places = [(r, c) for r in range(top, bottom) for c in range(left, right)]
                y, _ = attend(block.middle.attention, np.array([x[:, r, c] for r, c in places]), softmax)
                made.update(zip(places, y, strict=True))
        outputs.append(np.array([made[r, c] for r in range(height) for c in range(width)]))
    flat = x.reshape(C, -1).T
    if "long" in chosen["branches"]:
        y, attn = attend(block.long.attention, flat, softmax)
        if chosen["gate"]:
            sums = attn.sum(axis=0 if chosen["gate"] == "out" else 1)
            if chosen["gate_sum"] == "mean" and not softmax:
                sums = sums / len(flat)
            if chosen.get("gate_logits") == "standard":
                sums = attn.sum(axis=0) if softmax else attn.sum(axis=0) / len(flat) / block.long.attention.scale
                sums = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-6)
                sums = sums * block.long.gate_gain.item() + block.long.gate_bias.item()
            gate = 1 / (1 + np.exp(-sums))
            if chosen["gate_norm"] == "softmax":
                gate = np.exp(sums - sums.max()) / np.exp(sums - sums.max()).sum()
            y = y * gate[:, None]
        outputs.append(y)
    return (flat + fused(block, outputs, chosen, height, width)).T.reshape(C, height, width)


def fused(block, z, chosen, height, width):
    if len(z) == 1 and chosen["project"]:
        return z[0]
    if chosen["fusion"] == "concat":
        return dense(block.fuse, np.concatenate(z, axis=1))
    if chosen["fusion"] == "sum":
        return z[0] + z[1]
    if chosen["fusion"] == "channel":
        hidden = (z[0] + z[1]).mean(axis=0) @ block.fuse.squeeze[0].weight.detach().numpy().T
        hidden = np.maximum(hidden + block.fuse.squeeze[0].bias.detach().numpy(), 0)
        logits = np.stack(
            [layer.weight.detach().numpy() @ hidden + layer.bias.detach().numpy() for layer in block.fuse.select]
        )
        weights = np.exp(logits) / np.exp(logits).sum(axis=0)
        return weights[0] * z[0] + weights[1] * z[1]
    both = np.pad(np.concatenate(z, axis=1).reshape(height, width, 2 * C), ((1, 1), (1, 1), (0, 0)))
    kernel, bias = (p.detach().numpy() for p in (block.fuse.weigh[0].weight, block.fuse.weigh[0].bias))
    out = np.zeros((height * width, C))
    for i, (r, c) in enumerate(itertools.product(range(height), range(width))):
        window = both[r : r + 3, c : c + 3].transpose(2, 0, 1)
        logits = dense(block.fuse.weigh[2], np.maximum((kernel * window).sum(axis=(1, 2, 3)) + bias, 0))
        weights = np.exp(logits) / np.exp(logits).sum()
        out[i] = weights[0] * z[0][i] + weights[1] * z[1][i]
    return out


@pytest.mark.parametrize("form", ["literal", "factored"])
@pytest.mark.parametrize("chosen", OPTIONS[::5], ids=lambda chosen: "-".join(map(str, chosen.values())))
def test_follows_the_equations(chosen, form):
    block = make(form, patches=2, **chosen)
    x = features(4, 5, batch=1)
    with torch.no_grad():
        y = block(x)[0].numpy()
    np.testing.assert_allclose(y, oracle(block, x[0].numpy(), chosen, 2), rtol=0, atol=1e-9 * np.abs(y).max())


NEW = [
    {**chosen, "gate_logits": logits, "logit_scale": scale}
    for chosen in OPTIONS[::3] for logits in ("plain", "standard") for scale in ("one", "root")
    if (logits, scale) != ("plain", "one")
    and not (logits == "standard" and chosen["gate"] == "in" and "long" in chosen["branches"])
]  # fmt: skip


@pytest.mark.parametrize("form", ["literal", "factored"])
@pytest.mark.parametrize("chosen", NEW[::4], ids=lambda chosen: "-".join(map(str, chosen.values())))
def test_scaled_and_standardised_logits_follow_their_definition(chosen, form):
    block = make(form, patches=2, **chosen)
    x = features(4, 5, batch=1)
    with torch.no_grad():
        found = block(x)[0].numpy()
    np.testing.assert_allclose(found, oracle(block, x[0].numpy(), chosen, 2), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("chosen", NEW, ids=lambda chosen: "-".join(map(str, chosen.values())))
def test_new_settings_in_both_forms_with_gradients(chosen):
    factored, literal = forms(make(**chosen))
    x = features()
    outputs = []
    for block in (factored, literal):
        block.zero_grad()
        given = x.clone().requires_grad_()
        y = block(given)
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        outputs.append((y.detach(), given.grad, [p.grad for p in block.parameters()]))
    (y, dx, dp), (other_y, other_dx, other_dp) = outputs
    torch.testing.assert_close(y, other_y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dx, other_dx, rtol=1e-7, atol=1e-8)
    for own, other in zip(dp, other_dp, strict=True):
        if own is None or other is None:  # a bias that drops out of the standardised logits
            assert not (own if own is not None else other if other is not None else torch.zeros(())).abs().max() > 1e-8
        else:
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_a_standardised_gate_is_open_here_and_shut_there_whatever_the_scale_of_features():
    block = make(gate_logits="standard")
    torch.nn.init.ones_(block.long.gate_gain), torch.nn.init.zeros_(block.long.gate_bias)
    for size in (0.1, 1.0, 100.0):
        gate = block.gate_map(features(9, 11) * size)
        assert 0.3 < gate.mean() < 0.7
        assert gate.std() > 0.1
    flat = torch.ones(1, C, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(block.gate_map(flat), torch.full((1, 1, 6, 6), 0.5, dtype=torch.float64))


def test_standardised_logits_need_attention_out():
    with pytest.raises(OrdnetError, match='needs gate="out"'):
        ordnet.OmniRange(8, gate="in", gate_logits="standard")


@pytest.mark.parametrize("fusion", CHOICES["fusion"])
def test_a_start_as_the_identity_adds_nothing_and_learns(fusion):
    block = ordnet.OmniRange(C, D, E, fusion=fusion, start="identity").double()
    x = features()
    torch.testing.assert_close(block(x), x, rtol=0, atol=0)
    (block(x) ** 2).sum().backward()
    layers = [block.fuse] if fusion == "concat" else [block.middle.attention.project, block.long.attention.project]
    assert all(layer.weight.grad.abs().max() > 0 for layer in layers)


def test_switching_a_part_off():
    block = make()
    x = features()
    with torch.no_grad():
        block(x)  # whatever is remembered must not survive
        torch.testing.assert_close(block.without("block")(x), x, rtol=0, atol=0)
        literal = forms(block)[1]
        middle, long = block.middle(x, literal=True), block.long(x, literal=True)
        nothing = torch.zeros_like(x)
        torch.testing.assert_close(block.without("middle")(x), x + block.fuse(nothing, long))
        torch.testing.assert_close(block.without("long")(x), x + block.fuse(middle, nothing))
        torch.testing.assert_close(literal.without("long")(x), block.without("long")(x))
        open_long = block.long.attention.literal(x)[0]
        torch.testing.assert_close(block.without("gate")(x), x + block.fuse(middle, open_long))
        assert relative(block(x), literal(x), x) < 1e-10  # the block itself is as it was
    with pytest.raises(OrdnetError, match="no gate"):
        make(gate=None).without("gate")
    with pytest.raises(OrdnetError, match="no middle range"):
        make(branches=("long",)).without("middle")


# ---- the two forms -------------------------------------------------------------------------------------------


@given(
    chosen=st.sampled_from(OPTIONS), patches=st.integers(1, 4), height=st.integers(4, 11), width=st.integers(4, 11),
    batch=st.integers(1, 3), recording=st.booleans(), channels_last=st.booleans(),
)  # fmt: skip
def test_factored_equals_literal(chosen, patches, height, width, batch, recording, channels_last):
    block, literal = forms(make(patches=patches, **chosen))
    x = features(height, width, batch)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.set_grad_enabled(recording):
        assert relative(block(x), literal(x), x) < 1e-10


@given(chosen=st.sampled_from([o for o in OPTIONS if o["gate_sum"] == "mean"]), patches=st.integers(1, 3))
def test_factored_equals_literal_in_float32(chosen, patches):
    block, literal = forms(make(patches=patches, **chosen).float())
    x = features(9, 8, dtype=torch.float32)
    with torch.no_grad():
        assert relative(block(x), literal(x), x) < 1e-5


def test_float32_at_the_papers_width():
    block, literal = forms(ordnet.OmniRange(512).eval())
    x = torch.randn(1, 512, 31, 33).relu()
    with torch.no_grad():
        assert relative(block(x), literal(x), x) < 1e-5


@given(chosen=st.sampled_from(OPTIONS))
def test_gradients_agree(chosen):
    block, literal = forms(make(**chosen))
    x = features(4, 5)
    grads = []
    for form in (block, literal):
        inputs = x.clone().requires_grad_()
        y = form(inputs)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
        grads.append([inputs.grad, *(p.grad for p in form.parameters() if p.grad is not None)])
    assert len(grads[0]) == len(grads[1])
    for a, b in zip(*grads, strict=True):
        assert (a - b).abs().max() <= 1e-9 * (1 + b.abs().max())


@pytest.mark.parametrize("similarity", ["dot", "softmax"])
def test_gradcheck(similarity):
    block = ordnet.OmniRange(3, 2, 2, similarity=similarity).double()
    x = torch.randn(1, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in block.named_parameters()]

    def run(features, *parameters):
        return torch.func.functional_call(block, dict(zip(names, parameters, strict=True)), (features,))

    assert torch.autograd.gradcheck(run, (x, *block.parameters()))


def test_weights_trained_in_one_form_run_in_the_other():
    factored, literal = make("factored"), make("literal")
    assert list(factored.state_dict()) == list(literal.state_dict())
    literal.load_state_dict(factored.state_dict())
    x = features()
    assert relative(factored(x), literal(x), x) < 1e-10


@torch.no_grad()
def test_remembered_products_follow_every_change_of_weights():
    block, literal = forms(make())
    x = features()
    block(x)
    changes = [
        lambda b: b.fuse.weight.data.mul_(2),  # a way that autograd's version counters do not see
        lambda b: b.middle.attention.project.weight.copy_(b.long.attention.project.weight),
        lambda b: b.load_state_dict({k: v * 1.5 for k, v in b.state_dict().items()}),
    ]
    for change in changes:
        change(block), change(literal)
        assert relative(block(x), literal(x), x) < 1e-10
    x32 = x.float()
    assert relative(block.float()(x32), literal.float()(x32), x32) < 1e-4


def test_half_precision_sums_do_not_overflow():
    """Σ x kᵀ over these positions passes 65,504, the largest half."""
    block = ordnet.OmniRange(8).eval()
    x = torch.full((1, 8, 64, 64), 6.0) + torch.randn(1, 8, 64, 64)
    with torch.no_grad():
        exact = block(x)
        assert (block.factored.collect(x.flatten(2)).outer.abs() > 65504).any()
        half = copy.deepcopy(block).half()(x.half()).float()
    assert torch.isfinite(half).all()
    assert relative(half, exact, x) < 0.02


def test_mixed_precision_on_cpu_covers_the_gpu_path():
    block = ordnet.OmniRange(16).train()
    x = torch.randn(2, 16, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x)
        y.float().sum().backward()
    assert relative(y.float(), block(x), x) < 0.05
    assert all(torch.isfinite(p.grad).all() for p in block.parameters())


# ---- what must be true of the branches -----------------------------------------------------------------------


@given(height=st.integers(1, 30), width=st.integers(1, 30), patches=st.integers(1, 6))
def test_patches_partition_the_map(height, width, patches):
    if min(height, width) < patches:
        with pytest.raises(OrdnetError, match="cannot be cut into"):
            patch_grid(height, width, patches)
        return
    covered = np.zeros((height, width), int)
    sizes = set()
    for rows, columns in patch_grid(height, width, patches):
        covered[rows, columns] += 1
        sizes.add((rows.stop - rows.start, columns.stop - columns.start))
    assert (covered == 1).all()
    for axis in (0, 1):
        lengths = [size[axis] for size in sizes]
        assert max(lengths) - min(lengths) <= 1
    x = torch.arange(height * width).view(1, 1, height, width)
    assert torch.equal(join([x[:, :, r, c] for r, c in patch_grid(height, width, patches)], patches), x)


@pytest.mark.parametrize("form", ["literal", "factored"])
def test_a_gate_of_ones_gives_plain_attention(form):
    gated = make(form, branches=("long",), gate="out", gate_sum="sum")
    with torch.no_grad():
        # column sums k_i · Σq become 12,000 everywhere: their sigmoid is exactly one
        for layer in (gated.long.attention.query, gated.long.attention.key):
            layer.weight.zero_()
            layer.bias.fill_(20.0)
    plain = make(form, branches=("long",), gate=None)
    plain.load_state_dict(gated.state_dict())
    x = features()
    with torch.no_grad():
        assert torch.equal(gated.gate_map(x), torch.ones(2, 1, 5, 7, dtype=torch.float64))
        assert relative(gated(x), plain(x), x) < 1e-12


@pytest.mark.parametrize("form", ["literal", "factored"])
@pytest.mark.parametrize("similarity", ["dot", "softmax"])
def test_permuting_positions_permutes_the_long_range(form, similarity):
    block = make(form, branches=("long",), similarity=similarity)
    x = features(4, 6)
    order = torch.randperm(24)
    with torch.no_grad():
        y = block(x).flatten(2)[..., order]
        z = block(x.flatten(2)[..., order].view_as(x)).flatten(2)
    torch.testing.assert_close(y, z, rtol=0, atol=1e-10)


@torch.no_grad()
def test_middle_range_does_not_see_beyond_its_patch():
    block = make(branches=("middle",))
    x = features(6, 6)
    changed = x.clone()
    changed[:, :, 3:, 3:] += 1
    difference = (block(x) - block(changed)).abs().amax(dim=(0, 1))
    assert difference[:3].max() == 0
    assert difference[:, :3].max() == 0
    assert (difference[3:, 3:] > 0).all()


@pytest.mark.parametrize("chosen", [o for o in OPTIONS if o["gate"] and o["branches"] != ("middle",)][::3], ids=str)
@torch.no_grad()
def test_gate_map_is_what_the_long_range_is_multiplied_with(chosen):
    chosen = {**chosen, "branches": ("long",), "project": True, "fusion": "concat"}
    gated, plain = make(**chosen), make(**{**chosen, "gate": None})
    plain.load_state_dict(gated.state_dict())
    x = features()
    torch.testing.assert_close(gated(x) - x, (plain(x) - x) * gated.gate_map(x), rtol=1e-8, atol=1e-10)


def test_no_gate_map_without_a_gate():
    assert make(gate=None).gate_map(features()) is None
    assert make(branches=("middle",)).gate_map(features()) is None


def test_reweighing_adds_no_parameters():
    def count(**chosen):
        return sum(p.numel() for p in make(**chosen).parameters())

    assert count(branches=("long",), gate="out") == count(branches=("long",), gate=None)


def test_default_widths():
    block = ordnet.OmniRange(64)
    assert block.middle.attention.query.out_channels == 8
    assert block.long.attention.value.out_channels == 16


@torch.no_grad()
def test_factored_form_never_builds_the_map():
    """The largest tensor made along the way grows with N, not with N²."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return out

    for similarity in ("dot", "softmax"):
        block = ordnet.OmniRange(8, similarity=similarity).eval()
        with Largest() as seen:
            block(torch.randn(1, 8, 64, 64))
        # a block of softmax queries is held at once: 1,024 of the 4,096
        assert seen.numel <= (16 if similarity == "dot" else 1024) * 64 * 64


def test_vitals_of_torch_modules_still_work():
    """nn.Module's own methods are not shadowed."""
    seen = []
    make().apply(lambda module: seen.append(module))
    assert len(seen) > 5


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"gate": "sideways"}, "gate='sideways' is unknown"),
        ({"branches": ("short",)}, "branches"),
        ({"similarity": "softmax", "gate": "in"}, "sum to 1"),
        ({"project": False, "fusion": "sum"}, 'use project=True or fusion="concat"'),
        ({"patches": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(chosen, message):
    with pytest.raises(OrdnetError, match=message):
        ordnet.OmniRange(8, **chosen)


def test_wrong_input_is_refused():
    with pytest.raises(OrdnetError, match=r"expected features \(B, 12, H, W\), got \(2, 3, 4, 4\)"):
        make()(torch.zeros(2, 3, 4, 4))
    with pytest.raises(OrdnetError, match="1x7 positions cannot be cut into 2x2 patches"):
        make()(features(1, 7))
