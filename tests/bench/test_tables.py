"""Tables of figures: however narrow the terminal, no name and no figure is cut."""

import io

import pytest
from rich.console import Console

from ordnet import progress
from ordnet.bench.measure import Measurement, print_table, show

NAMES = ("ordnet-fine", "dilated-fcn-plain", "smp-deeplabv3plus")
GATES = "0.50 ± 0.21, 0.51 ± 0.22, 0.49 ± 0.23"
ROWS = [
    Measurement(
        name, 0.0312 * k, 1.0 * k, 0.03, 12.3 * k,
        extra={"mIoU": 0.8793, "mIoU_spread": 0.01, "pixel_accuracy": 0.887, "steps": 12340 + k, "gate": GATES},
    )
    for k, name in enumerate(NAMES, 1)
]  # fmt: skip


@pytest.fixture
def shown(monkeypatch):
    """What `show` prints on a terminal of a given width."""

    def on(width, rows=ROWS):
        out = io.StringIO()
        monkeypatch.setattr(progress, "plain_console", lambda pipe_width=0: Console(file=out, width=width))
        show("a title", rows, None)
        return out.getvalue()

    return on


@pytest.mark.parametrize("width", [12, 24, 40, 60, 80, 100, 120, 200])
def test_nothing_is_cut(shown, width):
    text = shown(width)
    assert "…" not in text
    if width >= 40:  # below, a list whose lines the terminal breaks
        assert all(len(line) <= width for line in text.splitlines())
    for name in NAMES:
        assert name in text
    for figure in ("31.2 ms", "93.6 ms", "3.00", "36.9", "12,343", "0.50 ± 0.21", "0.49 ± 0.23"):
        assert figure in text


@pytest.mark.parametrize(("width", "tables"), [(200, 1), (120, 1), (80, 2), (12, 0)])
def test_as_few_tables_as_fit(shown, width, tables):
    text = shown(width)
    assert text.count("┏") == tables
    assert [text.count(name) for name in NAMES] == [tables or 1] * 3  # each of them says whose row it is
    assert text.count("a title") == 1


def test_a_list_where_no_table_fits(shown):
    assert "dilated-fcn-plain\n  time: 62.4 ms\n  ±: 3%\n  x ours: 2.00\n" in shown(12)


def test_scores_have_as_many_digits_each(shown):
    text = shown(200)
    assert "0.8793" in text and "0.8870" in text and "0.0100" in text
    assert "–" in shown(200, [Measurement("alone", extra={"mIoU": 0.5, "mIoU_spread": None})])


def test_keys_words_and_sections():
    out = io.StringIO()
    rows = [["FCN", "VGG", "1.0", "no"], ["ORDNet", "ResNet-101", "54.5", "yes"]]
    console = Console(file=out, width=30)
    print_table(console, "t", ["method", "backbone", "mIoU %", "ours"], rows, keys=2, left=["ours"], sections=[1])
    text = out.getvalue()
    assert text.count("┏") == 2 and text.count("ResNet-101") == 2  # both tables say which network a row is
    assert text.count("├") == 2
    assert "│ no   │" in text and "│   1.0 │" not in text and "│  1.0 │" in text
