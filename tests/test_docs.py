"""README.md and docs/*.md: what they tell people to type, to open and to import exists."""

import ast
import re
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ordnet
from ordnet.commands import app
from ordnet.config import Settings
from ordnet.training.monitor import Display
from scripts.docs_commands import ROOT, Block, Command, blocks, commands, differs, pages, problem

PAGES = [pytest.param(page, id=page.name) for page in pages()]
PACKAGE = ROOT / "ordnet"


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page):
    wrong = [f"{c.where}: {c.text}\n    {why}" for c in commands(page) if (why := problem(c))]
    assert not wrong, "\n".join(wrong)


def test_commands_are_found():
    assert len([command for page in pages() for command in commands(page) if not command.only_named]) > 40


@pytest.mark.parametrize(
    "text, reason",
    [
        ("ordnet trian scenes-tiny", "trian"),
        ("ordnet train scenes-tiny --epochs 3", "--epochs"),
        ("ordnet train scenes-huge", "no recipe"),
        ("ordnet train scenes-tiny --set training.epoch=3", "there are epochs"),
        ("ordnet predict outdoor --out parsed", "images"),
        ("ordnet predict outdoor photo.jpg", "--out"),
        ("ordnet data preview scenes --out a.png --n many", "--n"),
        ("ordnet data import vgg SRC --out street", "vgg"),
        ("ordnet bench blocks", "blocks"),
        ("torchrun --processes 2 -m ordnet train scenes-tiny", "torchrun"),
        ("torchrun --nproc-per-node 2 -m ordnet trian scenes-tiny", "trian"),
        ("make tests", "tests"),
    ],
)
def test_wrong_commands_are_refused(text, reason):
    assert reason in (problem(Command(ROOT / "README.md", 1, text)) or "")


def found(tmp_path: Path, text: str) -> list[tuple[int, str, bool]]:
    page = tmp_path / "page.md"
    page.write_text(textwrap.dedent(text), encoding="utf-8")
    return [(command.line, command.text, command.only_named) for command in commands(page)]


def test_how_commands_are_found(tmp_path):
    text = """\
    Type `ordnet recipes`, `ordnet train RECIPE --data …`, or `python x`. Then `ordnet bench block | scale` and
    `ordnet data check
    folder:street`.

    | `ordnet submit ade20k\\|voc MODEL --data … --out FILE.zip` | sends |

    ```
    git clone … && make install      # creates .venv
    ordnet train scenes-tiny --set a.b=1    a remark
    $ ORDNET_HUB=hub ordnet models \\
        outdoor > out.txt
    torchrun --nproc-per-node 2 -m ordnet train …
    ```

        ordnet recipes scenes-tiny
    """
    assert found(tmp_path, text) == [
        (1, "ordnet recipes", True),
        (1, "ordnet train RECIPE --data …", False),
        (1, "ordnet bench block", True),
        (1, "ordnet bench scale", True),
        (2, "ordnet data check folder:street", False),
        (5, "ordnet submit ade20k MODEL --data … --out FILE.zip", False),
        (5, "ordnet submit voc MODEL --data … --out FILE.zip", False),
        (8, "make install", False),
        (9, "ordnet train scenes-tiny --set a.b=1", False),
        (10, "ordnet models outdoor", False),
        (12, "torchrun --nproc-per-node 2 -m ordnet train", True),
        (15, "ordnet recipes scenes-tiny", False),
    ]


# ---- what commands print ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promised", "printed", "fits"),
    [
        ("a 1\n…\nb 2.5%", "a 17\nx\ny\nb 1,234%\nc", True),
        ("a 1\nb", "x\na 2\n\n b", True),
        ("a\nb", "a\nx\nb", False),
        ("b\n…\na", "a\nb", False),
        ("rate 0.0021", "rate 1e-05", True),
        ("a", "", False),
        (" ───\n a   b", "──────\na b", True),
    ],
)
def test_how_printed_lines_are_compared(promised, printed, fits):
    assert (differs(promised, printed) == "") == fits


def test_the_tutorial_prints_what_it_promises(tmp_path, monkeypatch, capsys):
    """The folder that its Python makes, `ordnet data check` on it, and an epoch's line; docs-check runs all of it."""
    page = ROOT / "docs" / "getting_started.md"
    written = blocks(page)
    monkeypatch.chdir(tmp_path)
    exec(compile(next(block.text for block in written if block.kind == "python"), page.name, "exec"), {})
    printed = [block.text for block in written if block.kind == "text"]
    result = CliRunner().invoke(app, ["data", "check", "folder:street"])
    assert differs(next(text for text in printed if "folder:street" in text), result.output) == ""
    record = {
        "epoch": 1, "loss": 2.0, "miou": 0.15, "miou_classes": 13, "pixel_accuracy": 0.5, "protocol": "whole",
        "rate": 1e-5, "images_per_second": 1.2, "gate_mean": 0.5, "gate_spread": 0.1, "per_class_iou": {},
    }  # fmt: skip
    Display(main=True).epoch(record, 3)
    assert differs(next(text for text in printed if text.startswith("epoch")), capsys.readouterr().err) == ""


# ---- links ----------------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(r"^\s*```.*?^\s*```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r'(?:src|href|srcset)="([^"]+)"', prose(page))
    wrong = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if "://" in target:
            continue
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


def test_every_page_is_reached_from_the_readme_or_the_map():
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in pages()
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
        if "://" not in target
    }
    assert {page for page in (ROOT / "docs").glob("*.md") if page not in linked} == set()


# ---- Python ---------------------------------------------------------------------------------------------------


def python_blocks(page: Path) -> list[Block]:
    return [
        block
        for block in blocks(page)
        if block.kind == "python" or (block.kind == "indented" and block.text.startswith(("import ", "from ")))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_python_can_be_run(page):
    for block in python_blocks(page):
        where = f"{page.name}:{block.line}"
        tree = ast.parse(textwrap.dedent(block.text), where)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ordnet":
                for alias in node.names:
                    assert hasattr(import_module(node.module), alias.name), f"{where}: {node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "ordnet":
                        import_module(alias.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ordnet":
                assert hasattr(import_module("ordnet"), node.attr), f"{where}: ordnet.{node.attr}"


@pytest.mark.parametrize("page", PAGES)
def test_extras_exist(page):
    declared = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.M)
    for extras in re.findall(r"ordnet\[([a-z,]+)\]", page.read_text(encoding="utf-8")):
        assert set(extras.split(",")) <= set(declared), extras


# ---- the map and the settings ---------------------------------------------------------------------------------


def tree_of(page: Path) -> set[str]:
    """Every Python file that the map's tree names, as a path below the package."""
    folder, named = "", set()
    for line in next(block for block in blocks(page) if block.kind == "").text.splitlines():
        if head := re.match(r"  ([a-z]+)/", line):
            folder = head[1] + "/"
        named |= {folder + name for name in re.findall(r"[\w/]+\.py\b", line)}
    return named


def test_the_map_names_every_file_and_no_other():
    there = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    named = tree_of(ROOT / "docs" / "architecture.md")
    assert named - there == set(), "the map names files that do not exist"
    assert {path for path in there - named if not path.endswith("/__init__.py")} == set(), "the map lacks files"


def test_the_table_of_settings_is_complete():
    """docs/recipes.md names exactly the settings of ordnet/config.py, each with its default."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)` \| ([^|]+) \|", text, flags=re.M)
    assert len(rows) == len(dict(rows))
    defaults = Settings().model_dump(mode="json")
    expected = {
        f"{section}.{name}": shown(value) for section, values in defaults.items() for name, value in values.items()
    }
    assert {name: default.strip().strip("`") for name, default in rows} == expected


def test_the_table_of_settings_has_every_backbone_and_variant():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for setting, names in {"backbone": ordnet.backbones(), "variant": ordnet.variants()}.items():
        (row,) = re.findall(rf"^\| `model.{setting}` .*$", text, flags=re.M)
        assert set(names) <= set(re.findall(r"`([\w-]+)`", row))


def shown(value: object) -> str:
    if value is None:
        return "–"
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
