"""The paper's figures, `ordnet recipes --paper`, and whether docs/paper_to_code.md names what exists."""

import ast
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ordnet.bench import block
from ordnet.commands import app
from ordnet.config import Settings
from ordnet.data.catalogue import OPENERS
from ordnet.paper import ABLATIONS, COMPUTE, ORDNET_R101, RESULTS, ablation, score
from ordnet.recipes import recipes, stages

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "paper_to_code.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown() -> str:
    result = CliRunner().invoke(app, ["recipes", "--paper"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def parts(shown: str) -> list[str]:
    """One piece of the output per table, from its title to the empty line."""
    return shown.split("\n\n")[:-1]


def commands(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  ordnet ")]


def parse(command: str) -> None:
    """Refused here is what the command line would refuse: unknown commands and options, missing values."""
    words = shlex.split(command)
    here = typer.main.get_command(app)
    assert words.pop(0) == "ordnet"
    while hasattr(here, "commands"):
        here = here.commands[words.pop(0)]
    here.make_context(here.name, words)


# ---- the figures ----------------------------------------------------------------------------------------------


def test_ablations_fit_what_the_paper_says_about_them():
    """Gains as the text states them, which were not copied from the tables."""

    def gain(cell: str, over: str, figure: str = "miou") -> float:
        return round(ABLATIONS["branches"][cell][figure] - ABLATIONS["branches"][over][figure], 2)

    assert gain("basic-sa", "dilated-fcn") == 4.15
    assert gain("basic-sa-mr", "basic-sa") == 0.81
    assert gain("ordnet", "basic-sa") == 1.22
    assert gain("ordnet", "basic-sa", "pixel_accuracy") == 0.74
    assert gain("basic-sa-rlr", "basic-sa") == 0.83  # 0.81 in the text, a slip that docs/paper_to_code.md names
    basic = ABLATIONS["branches"]["basic-sa"]
    assert round(ORDNET_R101["miou"] - basic["miou"], 2) == 3.58
    assert round(ORDNET_R101["pixel_accuracy"] - basic["pixel_accuracy"], 2) == 1.63


def test_rows_that_are_the_same_network_have_the_same_figures():
    branches, patches = ABLATIONS["branches"], ABLATIONS["patches"]
    assert score(patches["p1"]) == score(branches["basic-sa"]) == "49.45 mIoU, 78.61 pixAcc"
    assert ABLATIONS["gate"]["out-sigmoid"] == branches["basic-sa-rlr"]
    assert ABLATIONS["fusion"]["concat"] == branches["ordnet"]
    first, second = (patches[a]["gflops"] - patches[b]["gflops"] for a, b in (("p1", "p2"), ("p2", "p4")))
    assert first / second == pytest.approx(2.9, abs=0.01)  # a + b/p² would make it 4


def test_cells_of_the_ablations():
    assert {name: list(cells) for name, cells in ABLATIONS.items()} == {
        "branches": ["dilated-fcn", "basic-sa", "basic-sa-mr", "basic-sa-rlr", "ordnet"],
        "patches": ["p1", "p2", "p4", "p4-large"],
        "gate": ["in-softmax", "in-sigmoid", "out-softmax", "out-sigmoid"],
        "fusion": ["sum", "concat", "scale", "channel"],
    }


def test_the_bench_shows_the_compute_table():
    assert {name: (row["gflops"], row["peak_mb"], row["ms"]) for name, row in COMPUTE.items()} == block.PAPER


def test_recipes_take_their_figures_from_here():
    source = (ROOT / "ordnet" / "recipes.py").read_text(encoding="utf-8")
    assert not re.search(r"\d\d\.\d+ (mIoU|pixAcc|final score)", source)  # our own are shares of 1
    known = recipes()
    for results in RESULTS:
        for row in results.ordnet:
            assert results.of(row.recipe) in known[row.recipe].paper
    told = {recipe.paper for recipe in known.values()}
    missing = {ablation(table, cell) for table, cells in ABLATIONS.items() for cell in cells} - told
    assert not missing


# ---- ordnet recipes --paper -----------------------------------------------------------------------------------


def test_every_row_is_printed(shown):
    rows = [sum(line.startswith("│") for line in part.splitlines()) for part in parts(shown)]
    assert rows == [27, 13, 16, 7, 1]
    for line in [
        r"DeepLab-v2 +│ ResNet-101 \+ COCO +│ +45\.7 ",
        r"MSCI +│ ResNet-152 +│ +50\.3 ",
        r"DUpsampling +│ Xception-71 +│ +52\.5 ",
        r"DAG-RNN \+ CRF +│ ResNet-101 +│ +31\.2 ",
        r"CascadeNet +│ – +│ +34\.90 +│ +74\.52 ",
        r"CFNet +│ ResNet-101 +│ +44\.89 +│ +– ",
        r"SenseCUSceneParsing +│ – +│ train +│ +55\.38 ",
        r"ORDNet +│ ResNet-101 +│ trainval +│ +56\.86 ",
        r"ORDNet +│ ResNet-101 +│ +83\.3 ",
    ]:
        assert len(re.findall(line, shown)) == 1, line


def test_the_best_of_each_column_has_a_star(shown):
    starred = [re.findall(r"│ ([\w+ ]+?-?\w*) +│.*?(\d\d\.\d+) \*", part) for part in parts(shown)]
    assert starred[0] == [("ORDNet", "54.5")]
    assert starred[1] == [("ORDNet", "40.5")]
    # pixel accuracy belongs to two others, of which the paper marks one
    assert sorted(starred[2]) == [("EncNet", "81.69"), ("ORDNet", "45.39"), ("PSPNet-269", "81.69")]
    assert starred[3] == [("SenseCUSceneParsing", "57.21")]
    assert starred[4] == []


def test_our_figures_or_not_measured(shown):
    known = recipes()
    for part, results in zip(parts(shown), RESULTS, strict=True):
        for row in results.ordnet:
            assert known[row.recipe].ours.split()[0] in part
        assert part.splitlines().count(results.protocol) == 1, "one line, not wrapped"


def test_nothing_is_wider_than_100_columns(shown):
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 100


def test_commands_parse_and_follow_one_another(shown):
    known = recipes()
    for part, results in zip(parts(shown), RESULTS, strict=True):
        for words in map(shlex.split, commands(part)):
            parse(shlex.join(words))
            data = words[words.index("--data") + 1]
            assert data.removesuffix(":PATH") in OPENERS
            if words[1] == "train":
                assert known[words[2]].settings.data.name == data.removesuffix(":PATH")
        for row in results.ordnet:
            block_of = part.split(f"Ours, {row.recipe}:")[1].split("Ours, ")[0]
            *trainings, scoring = commands(block_of)
            assert [shlex.split(command)[2] for command in trainings] == [r.name for r in stages(row.recipe)]
            assert f"runs/{row.recipe}/last.safetensors" in scoring
            assert scoring.startswith("ordnet submit" if results.server else "ordnet evaluate")
            for earlier, later in pairwise(trainings):
                assert f"--init runs/{shlex.split(earlier)[2]}/" in later


def test_stages_of_the_paper():
    assert [recipe.name for recipe in stages("voc-r101-finetune")] == ["voc-r101", "voc-r101-finetune"]
    assert [recipe.settings.training.epochs for recipe in stages("ade20k-r101-trainval")] == [120, 20]
    assert [recipe.settings.training.rate for recipe in stages("voc-r101-finetune")] == [1e-3, 1e-4]


def test_one_recipe_and_all_tables_are_not_both_shown():
    result = CliRunner().invoke(app, ["recipes", "voc-r101", "--paper"])
    assert result.exit_code == 1
    assert "not both" in str(result.exception)


# ---- docs/paper_to_code.md ------------------------------------------------------------------------------------

SPANS = re.findall(r"`([^`]+)`", MAP)


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, and the methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_every_file_and_function_named_exists():
    named = [span for span in SPANS if re.fullmatch(r"(ordnet|tests|docs)/[\w/.]+(:[\w.]+)?", span)]
    assert len(named) > 60
    for span in named:
        path, _, name = span.partition(":")
        assert (ROOT / path).exists(), span
        assert not name or name in defined(ROOT / path), span


def test_every_command_named_parses():
    named = [span for span in SPANS if span.startswith("ordnet ")]
    assert {span.split()[1] for span in named} >= {"ablate", "bench", "compare", "data", "evaluate", "explain"}
    for span in named:
        parse(span)


def test_every_setting_and_recipe_named_exists():
    for span in SPANS:
        if found := re.fullmatch(r"(data|model|training|evaluation)\.(\w+)( .*)?", span):
            assert found[2] in type(getattr(Settings(), found[1])).model_fields, span
    known = recipes()
    named = re.findall(r"\b(?:pcontext|coco-stuff|ade20k|voc)-r\d+[\w-]*", MAP)
    assert len(named) > 8
    assert [name for name in named if name not in known and name != "pcontext-r50-"] == []


def test_every_equation_figure_and_table_has_its_row():
    for kind, count in (("Eq. ", 9), ("Fig. ", 7)):
        assert [f"{kind}{i}" for i in range(1, count + 1) if f"\n| {kind}{i}," not in MAP] == []
    assert [number for number in ("I", "II", "III", "IV", "V to VIII", "IX") if f"\n| {number}, " not in MAP] == []
