import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ordnet.bench.training import SCORES, compare_losses, make_input, plain_lovasz_softmax, step
from ordnet.errors import OrdnetError
from ordnet.training.lovasz import lovasz_of_probabilities, lovasz_softmax
from tests import plain_lovasz


def draw(seed, shape=(2, 5, 6, 7), sharpness=3.0, void=0.2, dtype=torch.float64):
    """Scores and labels; class 0 never occurs unless it is the only one."""
    batch, classes, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    scores = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(min(1, classes - 1), classes, (batch, height, width), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < void] = 255
    return scores.to(dtype).requires_grad_(), labels


def value_and_gradient(scores, labels, **options):
    loss = lovasz_softmax(scores, labels, **options)
    (gradient,) = torch.autograd.grad(loss, scores)
    return loss.item(), gradient


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
    sharpness=st.sampled_from([0.1, 1.0, 4.0]),
    void=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_agrees_with_the_definition(seed, shape, sharpness, void):
    scores, labels = draw(seed, shape, sharpness, void)
    value, gradient = value_and_gradient(scores, labels)
    expected, expected_gradient = plain_lovasz.lovasz_softmax(scores.detach().numpy(), labels.numpy())
    assert value == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, atol=1e-12)


def test_gradient_agrees_with_differences():
    scores, labels = draw(0, (2, 4, 3, 3))
    assert torch.autograd.gradcheck(lambda s: lovasz_softmax(s, labels), (scores,))
    assert torch.autograd.gradcheck(lambda s: lovasz_softmax(s, labels, per_image=True), (scores,))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(1, 6),
    dtype=st.sampled_from([torch.half, torch.float32, torch.float64]),
)
def test_is_the_jaccard_loss_of_each_class_on_hard_predictions(seed, classes, dtype):
    generator = torch.Generator().manual_seed(seed)
    labels, guesses = torch.randint(classes, (2, 2, 5, 5), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = 255
    hard = torch.nn.functional.one_hot(guesses, classes).movedim(-1, 1).to(dtype)
    losses = lovasz_of_probabilities(hard, labels)
    counted = labels != 255
    for class_id in range(classes):
        truth, guess = (labels == class_id), (guesses == class_id) & counted
        if truth.any():
            iou = (truth & guess).sum() / (truth | guess).sum()
            assert losses[class_id].item() == pytest.approx(1 - iou.item(), abs=1e-6)
        else:
            assert losses[class_id].isnan()


def test_loss_is_the_mean_over_the_classes_present():
    scores, labels = draw(1)
    losses = lovasz_of_probabilities(scores.softmax(1), labels)
    assert losses.isnan().tolist() == [True, False, False, False, False]
    assert lovasz_softmax(scores, labels).item() == pytest.approx(losses.nanmean().item(), abs=1e-12)


def test_probabilities_with_ties_keep_their_value():
    # equal errors of foreground and background: the value does not depend on their order
    probabilities = torch.full((1, 2, 2, 3), 0.5, dtype=torch.float64)
    labels = torch.tensor([[[0, 0, 1], [1, 1, 255]]])
    assert lovasz_of_probabilities(probabilities, labels).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_void_is_zero_with_a_zero_gradient(dtype, per_image):
    scores = torch.randn(2, 4, 3, 3).to(dtype).requires_grad_()
    loss = lovasz_softmax(scores, torch.full((2, 3, 3), 255), per_image=per_image)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.dtype == dtype
    assert scores.grad.eq(0).all()


@pytest.mark.parametrize("ignore", [255, -1, 0])
def test_void_pixels_do_not_matter(ignore):
    scores, labels = draw(2)
    labels[labels == 255] = ignore
    value, gradient = value_and_gradient(scores, labels, ignore=ignore)
    void = (labels == ignore).unsqueeze(1).expand_as(scores)
    changed = torch.where(void, 50 * torch.randn_like(scores), scores).detach().requires_grad_()
    assert value_and_gradient(changed, labels, ignore=ignore)[0] == pytest.approx(value, abs=1e-12)
    assert gradient[void].eq(0).all()
    assert gradient[~void].ne(0).any()


def test_per_image_is_the_mean_over_images_that_count():
    scores, labels = draw(3, (3, 4, 5, 5))
    labels[1] = 255
    value, gradient = value_and_gradient(scores, labels, per_image=True)
    singles = [value_and_gradient(scores[i : i + 1].detach().requires_grad_(), labels[i : i + 1]) for i in (0, 2)]
    assert value == pytest.approx(np.mean([single[0] for single in singles]), abs=1e-12)
    torch.testing.assert_close(gradient[[0, 2]], torch.cat([single[1] for single in singles]) / 2)
    assert gradient[1].eq(0).all()


def test_better_predictions_lose_less():
    labels = draw(4, void=0)[1]
    right = torch.nn.functional.one_hot(labels, 5).movedim(-1, 1).double()
    losses = [lovasz_softmax(sharpness * right, labels).item() for sharpness in (-10, 0, 2, 5, 40)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    scores, labels = draw(5, dtype=dtype)
    single = scores.detach().float().requires_grad_()
    value, gradient = value_and_gradient(scores, labels)
    expected, expected_gradient = value_and_gradient(single, labels)
    assert lovasz_softmax(scores, labels).dtype == torch.float32
    assert value == expected
    assert torch.equal(gradient, expected_gradient.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lovasz_softmax(single, labels).item() == expected


def test_scores_may_be_used_elsewhere_and_the_loss_scaled():
    scores, labels = draw(6)
    gradient = value_and_gradient(scores, labels)[1]
    loss = 3 * lovasz_softmax(scores, labels) + (scores**2).sum() + lovasz_softmax(scores, labels)
    loss.backward(retain_graph=True)
    torch.testing.assert_close(scores.grad, 4 * gradient + 2 * scores.detach())
    loss.backward()
    torch.testing.assert_close(scores.grad, 8 * gradient + 4 * scores.detach())


def test_memory_layout_and_label_type_do_not_matter():
    scores, labels = draw(7)
    value, gradient = value_and_gradient(scores, labels)
    last = scores.detach().to(memory_format=torch.channels_last).requires_grad_()
    other, other_gradient = value_and_gradient(last, labels.to(torch.uint8))
    assert other == value
    assert torch.equal(other_gradient, gradient)
    assert lovasz_softmax(scores.detach(), labels).item() == value


def test_a_broken_score_is_not_hidden():
    scores, labels = draw(8)
    with torch.no_grad():
        scores[0, :, 2, 2] = torch.nan
    labels[0, 2, 2] = 1
    assert lovasz_softmax(scores, labels).isnan()


@pytest.mark.parametrize("kind", SCORES)
def test_agrees_with_the_plain_loop_in_float32(kind):
    scores, labels = make_input(kind, 2, 12, 40)
    labels[0, :5] = 255
    value, gradient = step("ours", scores, labels)
    exact, exact_gradient = step("plain", scores.double(), labels)
    assert value.item() == pytest.approx(exact.item(), abs=1e-6)
    # float32 rounds 1 − p for everybody; ours must not be further off than the plain loop is
    plain_gradient = step("plain", scores, labels)[1]
    assert (gradient - exact_gradient).norm() < 1.01 * (plain_gradient - exact_gradient).norm()
    assert (gradient - exact_gradient).norm() < 1e-3 * exact_gradient.norm()
    assert plain_lovasz_softmax(scores, torch.full_like(labels, 255)) == 0


def test_what_does_not_fit_is_refused():
    scores, labels = draw(9)
    with pytest.raises(OrdnetError, match=r"values \[7\].*5 classes.*0…4"):
        lovasz_softmax(scores, torch.where(labels == 1, 7, labels))
    with pytest.raises(OrdnetError, match=r"values \[-1\]"):
        lovasz_softmax(scores, torch.where(labels == 1, -1, labels))
    with pytest.raises(OrdnetError, match=r"\(2, 5, 6, 7\).*\(2, 7, 6\)"):
        lovasz_softmax(scores, labels.transpose(1, 2))


def test_the_benchmark_compares_like_with_like():
    ours, plain = compare_losses(repeats=1, batch=1, classes=6, size=20, kinds=["random"])
    assert (ours.name, plain.name) == ("ours, random scores", "plain, random scores")
    assert ours.ratio == 1
    assert plain.ratio == pytest.approx(plain.seconds / ours.seconds)
    assert ours.extra["value"] == pytest.approx(plain.extra["value"], abs=1e-6)
    assert ours.extra["gradient_error"] < 1e-6
    assert ours.peak_mb is not None
