"""The package as a whole: who imports whom, what is public, how fast the command line answers."""

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ordnet
from ordnet.config import Settings, override, parse
from ordnet.errors import OrdnetError

PACKAGE = Path(ordnet.__file__).parent
# Each part may import the parts that stand in a later row, and itself.
LAYERS = [
    {"__main__"},
    {"commands"},
    {"serve"},
    {"study"},
    {"bench"},
    {"training"},
    {"evaluation"},
    {"inference"},
    {"data", "model", "picture"},
    {"recipes"},
    {"config", "paper"},
    {"files", "progress"},
    {"errors", "__init__"},
]
ROW = {part: row for row, parts in enumerate(LAYERS) for part in parts}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ordnet":
                yield from ("ordnet" if alias.name == "submodules" else f"ordnet.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_imports_point_down_only():
    upward = []
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue  # the public names, all imported on first use
        for module in imports(path):
            if module.split(".")[0] == "ordnet" and (other := part_of(module)) != own:
                assert other in ROW, f"{path}: {other} has no layer yet"
                if ROW[other] <= ROW[own]:
                    upward.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not upward


def test_modules_are_few_and_of_a_size_to_read():
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert len(lengths) <= 115
    assert statistics.median(lengths.values()) >= 110
    assert {name: lines for name, lines in lengths.items() if lines > 350} == {}


def test_a_parse_passes_through_few_files(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)).save(tmp_path / "small.jpg")
    parser = ordnet.load("outdoor")
    parser(tmp_path / "small.jpg")  # imports on first use are not part of the way
    files = set()

    def look(frame, event, argument):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            files.add(Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        parser(tmp_path / "small.jpg")
    finally:
        sys.setprofile(before)
    assert "model/network.py" in files
    assert len(files) <= 14, sorted(files)


def test_nobody_outside_model_asks_for_the_class_of_a_part():
    """Blocks and backbones answer for themselves (model/parts.py)."""
    kinds = {"Block", "Backbone"}
    for _ in range(3):  # children of children
        for path in (PACKAGE / "model").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and kinds & {getattr(base, "id", "") for base in node.bases}:
                    kinds.add(node.name)
    concrete = kinds - {"Block", "Backbone"}
    assert {"OmniRange", "DANet", "Tiny"} <= concrete
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] == "model":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                assert not concrete & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}, where
            if isinstance(node, ast.Compare):  # by name is no better
                sides = (node.left, *node.comparators)
                named = any(getattr(side, "attr", "") in ("variant", "backbone") for side in sides)
                assert not (named and any(isinstance(getattr(side, "value", None), str) for side in sides)), where


def test_every_part_has_a_layer():
    parts = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts <= set(ROW)


def test_public_names():
    assert sorted(ordnet.__all__) == [
        "OmniRange",
        "Parser",
        "backbones",
        "build",
        "evaluate",
        "load",
        "train",
        "variants",
    ]
    for name in ordnet.__all__:
        assert callable(getattr(ordnet, name))
    with pytest.raises(AttributeError, match="it offers"):
        _ = ordnet.nonsense


def run_isolated(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_and_import_stay_light():
    heavy = "['torch', 'numpy', 'pydantic', 'matplotlib', 'PIL', 'scipy']"
    code = (
        "import sys; import ordnet\n"
        "try:\n import ordnet.commands as c; c.app(['--help'])\n"
        f"except SystemExit: pass\nprint([m for m in {heavy} if m in sys.modules])"
    )
    shown = run_isolated(code)
    assert shown.splitlines()[-1] == "[]"
    assert "bench" in shown


def test_parts_are_reached_through_the_package():
    code = "import ordnet; print(ordnet.model.omni_range.OmniRange is ordnet.OmniRange)"
    assert run_isolated(code).strip() == "True"


COMMANDS = [
    "ablate", "bench", "compare", "data", "demo", "evaluate", "explain", "export", "models", "predict", "recipes",
    "serve", "submit", "train",
]  # fmt: skip


def test_help_lists_the_commands_that_exist():
    shown = run_isolated("import ordnet.commands as c; c.app(['--help'], standalone_mode=False)")
    assert sorted(line.split()[0] for line in shown.split("Commands:")[1].splitlines() if line.strip()) == COMMANDS


def test_user_errors_have_no_traceback():
    command = [sys.executable, "-m", "ordnet", "bench", "block", "--size", "seven"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "CHANNELSxHEIGHTxWIDTH" in done.stderr


def test_unknown_settings_are_refused():
    with pytest.raises(OrdnetError, match=r"training.epoch: there is no such setting; there are epochs"):
        parse({"training": {"epoch": 3}}, "file")
    with pytest.raises(OrdnetError, match=r"training has no setting 'epoch', perhaps epochs; there are epochs"):
        override(Settings(), ["training.epoch=3"])
    with pytest.raises(OrdnetError, match=r"training.epochs: .* got -1"):
        override(Settings(), ["training.epochs=-1"])


def test_settings_round_trip_and_override():
    changed = override(
        Settings(), ["training.rate=1e-3", "model.branches=[long]", "model.weights=a.safetensors", "data.limit=null"]
    )
    assert changed.training.rate == 1e-3
    assert changed.model.branches == ("long",)
    import yaml

    assert parse(yaml.safe_load(changed.to_yaml()), "x") == changed


def test_every_dependency_has_two_bounds_and_the_lower_one_is_tested():
    """`make test-oldest` installs exactly the lowest versions that pyproject.toml allows."""
    root = PACKAGE.parent
    text = (root / "pyproject.toml").read_text().partition("dev = [")[0]
    bounds = dict(re.findall(r'"([a-z0-9-]+)>=([0-9.]+),<[0-9]+"', text))
    wanted = re.findall(r'"([a-z][a-z0-9-]+)[<>=]', text.partition("dependencies = [")[2])
    assert set(bounds) == set(wanted)
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)$", (root / "constraints-oldest.txt").read_text(), re.M))
    assert pinned.keys() == bounds.keys()
    for name in bounds.keys() - {"torch"}:
        assert (pinned[name] + ".").startswith(bounds[name] + "."), name
