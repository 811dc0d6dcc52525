"""Numbers as colours and as short words."""

import numpy as np
import pytest

from ordnet.picture.attention_map import LIGHT, SHARES, SIGNED, coloured, number


def test_colours_say_sign_and_size():
    values = np.linspace(-1, 1, 21)
    signed = coloured(values, -1, 1, SIGNED)
    np.testing.assert_allclose(signed[10], SIGNED[3], atol=0.01)  # zero is neutral
    assert np.ptp(signed[10]) < 5
    assert (signed[11:, 0] > signed[11:, 2]).all()  # red above
    assert (signed[:10, 2] > signed[:10, 0]).all()  # blue below
    brightness = coloured(values, 0, 1, SHARES).sum(axis=-1)
    assert (np.diff(brightness[10:]) < 0).all()
    assert (brightness[:10] == brightness[10]).all()  # the same beyond the scale
    assert (np.diff(coloured(values, -1, 1, LIGHT).sum(axis=-1)) > 0).all()
    assert np.isfinite(coloured(np.zeros(3), 0, 0)).all()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1, "1"), (-0.00123, "-0.0012"), (0.5, "0.5"), (3.17e-5, "3.2e-5"), (12345, "1.2e4")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text
