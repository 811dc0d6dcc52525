import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ordnet.config import TrainingConfig
from ordnet.errors import OrdnetError
from ordnet.training.loss import count_pixels, cross_entropy, faded, total_loss
from ordnet.training.lovasz import lovasz_softmax

WEIGHTS = (0.5, 2.0, 0.0, 1.0)


def draw(seed=0, batch=4, void=0.3):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, 4, 5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(4, (batch, 5, 6), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < void] = 255
    return scores, labels.to(torch.uint8)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_whole_batch_is_torch_own_mean(weights):
    scores, labels = draw()
    expected = functional.cross_entropy(
        scores, labels.long(), torch.tensor(weights).double() if weights else None, ignore_index=255
    )
    loss = cross_entropy(scores, labels, count_pixels(labels, weights), weights)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 3), weights=st.sampled_from([None, WEIGHTS]))
def test_cross_entropy_does_not_depend_on_the_split(seed, cut, weights):
    scores, labels = draw(seed)
    config = TrainingConfig(lovasz=0, class_weights=weights)
    pixels = count_pixels(labels, weights)
    assert pixels == pytest.approx(count_pixels(labels[:cut], weights) + count_pixels(labels[cut:], weights))
    total_loss(scores, None, labels, config, pixels)[0].backward()
    whole, scores.grad = scores.grad, None
    for part in (slice(0, cut), slice(cut, None)):
        total_loss(scores[part], None, labels[part], config, torch.tensor(pixels))[0].backward()
    torch.testing.assert_close(scores.grad, whole)


def test_lovasz_of_micro_batches_is_weighted_by_their_samples():
    scores, labels = draw()
    config = TrainingConfig(cross_entropy=0, lovasz_per_image=True)
    assert (labels != 255).flatten(1).any(1).all()
    parts = [
        total_loss(scores[part], None, labels[part], config, 1.0, share)[0].item()
        for part, share in ((slice(0, 1), 0.25), (slice(1, None), 0.75))
    ]
    assert sum(parts) == pytest.approx(lovasz_softmax(scores, labels, per_image=True).item())


def test_total_is_the_weighted_sum_of_its_parts():
    scores, labels = draw()
    auxiliary = draw(1)[0]
    config = TrainingConfig(cross_entropy=0.7, lovasz=1.5, auxiliary=0.2, class_weights=WEIGHTS)
    pixels = count_pixels(labels, WEIGHTS)
    total, parts = total_loss(scores, auxiliary, labels, config, pixels)
    assert list(parts) == ["cross_entropy", "lovasz", "auxiliary"]
    assert not any(part.requires_grad for part in parts.values())
    assert parts["lovasz"].item() == pytest.approx(lovasz_softmax(scores, labels).item())
    assert parts["auxiliary"].item() == pytest.approx(cross_entropy(auxiliary, labels, pixels, WEIGHTS).item())
    expected = 0.7 * parts["cross_entropy"] + 1.5 * parts["lovasz"] + 0.2 * parts["auxiliary"]
    assert total.item() == pytest.approx(expected.item())
    total.backward()
    assert scores.grad.ne(0).any() and auxiliary.grad.ne(0).any()


def test_parts_without_a_weight_are_left_out():
    scores, labels = draw()
    assert list(total_loss(scores, scores, labels, TrainingConfig(lovasz=0, auxiliary=0), 9)[1]) == ["cross_entropy"]
    assert list(total_loss(scores, None, labels, TrainingConfig(cross_entropy=0), 9)[1]) == ["lovasz"]
    with pytest.raises(OrdnetError, match="no loss has a weight"):
        total_loss(scores, scores, labels, TrainingConfig(cross_entropy=0, lovasz=0), 9)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_void_is_zero_with_a_zero_gradient(weights, dtype):
    scores, labels = draw(void=1.1)
    scores = scores.detach().to(dtype).requires_grad_()
    pixels = count_pixels(labels, weights)
    assert pixels == 0
    total, _ = total_loss(scores, scores * 1, labels, TrainingConfig(class_weights=weights), pixels)
    total.backward()
    assert total.item() == 0
    assert scores.grad.eq(0).all()


def test_half_precision_is_summed_in_float32():
    scores, labels = draw()
    half = scores.detach().bfloat16()
    total, _ = total_loss(half, None, labels, TrainingConfig(), count_pixels(labels))
    assert total.dtype == torch.float32
    assert total.item() == total_loss(half.float(), None, labels, TrainingConfig(), count_pixels(labels))[0].item()


@pytest.mark.parametrize("weights", [(), (1.0,), (1.0, 1.0, 1.0, 1.0, 1.0), (1.0, -1.0, 1.0, 1.0)])
def test_class_weights_that_do_not_fit_are_refused(weights):
    scores, labels = draw()
    with pytest.raises(OrdnetError, match=r"expected 4, one per class, none below 0"):
        cross_entropy(scores, labels, 1.0, weights)


def test_class_weights_fade_over_the_run():
    config = TrainingConfig(class_weights=(4.0, 1.0, 0.25, 0.0), class_weights_fade=0.5)
    assert faded(config, 0.0).class_weights == config.class_weights
    assert faded(config, 0.5).class_weights == pytest.approx((4**0.75, 1.0, 0.25**0.75, 0.0))
    assert faded(config, 1.0).class_weights == faded(config, 1.2).class_weights == pytest.approx((2.0, 1.0, 0.5, 0.0))
    gone = config.model_copy(update={"class_weights_fade": 1.0})
    assert faded(gone, 1.0).class_weights == (1.0, 1.0, 1.0, 0.0)  # a class that is not to count never does
    constant = config.model_copy(update={"class_weights_fade": 0.0})
    assert faded(constant, 0.7) is constant
    without = TrainingConfig(class_weights_fade=0.5)
    assert faded(without, 0.7) is without


def test_descending_the_loss_finds_the_labels():
    scores, labels = draw(void=0.2)
    scores = torch.zeros_like(scores).requires_grad_()
    for _ in range(30):
        total, _ = total_loss(scores, None, labels, TrainingConfig(), count_pixels(labels))
        (gradient,) = torch.autograd.grad(total, scores)
        with torch.no_grad():
            scores -= 100 * gradient
    counted = labels != 255
    assert torch.equal(scores.argmax(1)[counted], labels[counted].long())
