"""Losses at a sample of the pixels, held to upsampling everything and looking at those pixels only."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import ordnet
from ordnet.training.loop import train_with
from ordnet.training.loss import sample_pixels, scores_at
from ordnet.training.step import Trainee
from tests.small_data import small_settings, write_folder

sides = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(size=sides, stride=st.integers(1, 8), seed=st.integers(0, 99), align_corners=st.booleans())
def test_it_is_upsampling_at_these_pixels(size, stride, seed, align_corners):
    small = [-(-side // stride) for side in size]
    scores = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True)
    rows, columns = sample_pixels(size, stride, seed, 5)
    whole = F.interpolate(scores, size=size, mode="bilinear", align_corners=align_corners)
    expected = whole[:, :, rows][:, :, :, columns]
    found = scores_at(scores, size, rows, columns, align_corners)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    slopes = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad((values * slopes).sum(), scores)[0] for values in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_all_pixels_come_in_time():
    """Each step sees one pixel in 16, the same one in each cell; the steps together see all, equally often."""
    seen = torch.zeros(8, 12)
    for step in range(4000):
        rows, columns = sample_pixels((8, 12), 4, 3, step)
        assert len(rows) == 2 and len(columns) == 3
        seen[rows[:, None], columns] += 1
    assert seen.min() > 150 and seen.max() < 350
    again = sample_pixels((8, 12), 4, 3, 17)
    assert all(torch.equal(a, b) for a, b in zip(again, sample_pixels((8, 12), 4, 3, 17), strict=True))


def test_auxiliary_scores_are_sampled_from_their_own_map():
    """They have another stride than the small scores, and come at the same pixels of the picture all the same."""
    changes = {"backbone": "mobilenet_v2", "output_stride": 32, "decoder": "dense", "auxiliary": True}
    net = ordnet.build("ordnet", classes=3, **changes).eval()
    images, size = torch.randn(2, 3, 96, 64), (96, 64)
    sample = sample_pixels(size, net.stride, 0, 1)
    with torch.no_grad():
        found = Trainee(net)(images, True, sample)
        whole = net.training_scores(images)
        at_scores = Trainee(net)(images, True)
    for small, full in zip(found, whole, strict=True):
        torch.testing.assert_close(small, full[:, :, sample[0]][:, :, :, sample[1]], atol=1e-5, rtol=1e-5)
    assert at_scores[0].shape == at_scores[1].shape


@pytest.mark.parametrize("loss_at", ["sample", "scores"])
def test_training_resumes_and_splits_alike(tmp_path, loss_at):
    from safetensors.torch import load_file

    folder = write_folder(tmp_path / "own")
    words = ("training.lovasz=0", "training.freeze_norm=true", "model.dropout=0", f"training.loss_at={loss_at}",
             "model.auxiliary=true", "training.epochs=2")  # fmt: skip
    runs = [train_with(small_settings(folder, *words), tmp_path / "whole")]
    runs.append(train_with(small_settings(folder, *words, "training.micro_batch=1"), tmp_path / "split"))
    whole, split = (load_file(run.folder / "last.safetensors") for run in runs)
    for key in whole:
        torch.testing.assert_close(whole[key], split[key], rtol=0, atol=2e-5)
