"""Benchmarks: operation counts against hand counts, and every command at a toy size. Seconds are never judged."""

import json
import re
import subprocess
import sys

import pytest
import torch

from ordnet.bench.block import FORMS, METHODS, PAPER_SIZE, exponents, prepare
from ordnet.bench.measure import Measurement, interleaved, peak_megabytes
from ordnet.bench.soak import soak
from ordnet.model.flops import gflops
from tests.serving import tiny_checkpoint

# The paper's table and what can be derived from the text, in 10⁹ operations.
DERIVED = {"InterlacedSSA": 386.0, "Basic SA": 618.5, "DANet": 1110.2, "ORDNet literal": 996.4}


@pytest.mark.parametrize(("name", "expected"), DERIVED.items())
def test_operations_of_the_papers_table(name, expected):
    with torch.device("meta"):
        module = METHODS[name](PAPER_SIZE[0])
    assert gflops(module, 1, *PAPER_SIZE) == pytest.approx(expected, abs=0.05)


def test_our_operations_by_hand():
    """4 C D multiply-adds per position and branch; the small matrices once per region."""
    c, d, e, h, w = 64, 8, 16, 12, 20
    with torch.device("meta"):
        module = METHODS["ORDNet factored"](c)
    n, regions = h * w, 4 + 1
    positions = n * (4 * c * d) * 2 + n * c * 3  # queries, keys, Σ x kᵀ, output; three more rows of biases
    small = regions * (e * c * d + c * e * d)  # Wv S, fold M
    small += c * c * e + c * c * d  # Wf Wo of the middle range; of the long range, with one matrix only, Wf (Wo M)
    counted = gflops(module, 1, c, h, w) * 1e9 / 2
    gate = n * c  # one dot product per position; its matrix-vector products are not counted
    assert counted == pytest.approx(positions + small + gate, rel=0.01)


def test_our_block_stays_below_its_mark():
    with torch.device("meta"):
        assert gflops(METHODS["ORDNet factored"](PAPER_SIZE[0]), 1, *PAPER_SIZE) <= 170


def test_peak_memory_of_a_known_allocation():
    assert peak_megabytes("tests.bench.test_bench:hold", megabytes=100) == pytest.approx(100, abs=8)


def hold(megabytes):
    return lambda: bytearray(megabytes * 10**6)


def test_contestants_take_turns():
    order = []
    timings = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2)
    assert order == ["a", "b"] * 3
    assert list(timings) == ["a", "b"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("train", [False, True])
def test_every_method_runs(name, train):
    prepare(name, 16, 9, 11, train)()


def test_exponents_of_known_growth():
    rows = [
        Measurement("x", seconds=1e-6 * n**power, extra={"form": form, "positions": n})
        for form, power in zip(FORMS, (1.0, 2.0), strict=True)
        for n in (64, 256, 1024)
    ]
    fitted = exponents(rows)
    assert fitted[FORMS[0]] == pytest.approx(1.0)
    assert fitted[FORMS[1]] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "words",
    [
        ["block", "--size", "16x8x9", "--repeats", "1"],
        ["block", "--size", "16x8x8", "--repeats", "1", "--train"],
        ["scale", "--channels", "16", "--sides", "4,8", "--repeats", "1"],
        ["model", "--backbone", "tiny", "--size", "40x33", "--repeats", "1"],
    ],
)
def test_commands(words, tmp_path):
    out, rows = tmp_path / "chart.png", tmp_path / "rows.json"
    command = [sys.executable, "-m", "ordnet", "bench", *words, "--json", str(rows), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
    for row in json.loads(rows.read_text()):
        assert {"name", "gflops", "peak_mb", "seconds", "ratio"} <= set(row)


@pytest.mark.parametrize(
    "words", [["block", "--size", "4x1x1"], ["scale", "--sides", "8"], ["scale", "--sides", "a,b"]]
)
def test_wrong_sizes(words):
    done = subprocess.run(
        [sys.executable, "-m", "ordnet", "bench", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ordnet: ")
    assert "Traceback" not in done.stderr


def test_a_short_soak_finds_no_mistakes_of_the_servers_own(tmp_path):
    """Every kind of client gets the answers that are meant for it."""
    model = tiny_checkpoint(tmp_path / "tiny.safetensors")
    rows, words = soak(str(model), 0.25, megapixels=0.5)
    answers = {row.name: row.extra.get("answers", "") for row in rows}
    assert {"good", "huge", "clicks", "tiny", "hostile", "slow", "idle", "nonsense"} <= set(answers)
    assert not any("500" in each for each in answers.values())
    assert "200" in answers["good"]
    assert set(re.findall(r"(\d{3}): ", answers["hostile"])) <= {"413", "415", "422", "503"}
    assert "408" in answers["slow"]
    assert words[0].endswith("0 of them 500")
    counts = re.search(r"(\d+) of [\d,]+ above 100 ms \((\d+) also without what", words[1])
    assert counts and int(counts[2]) <= int(counts[1])
