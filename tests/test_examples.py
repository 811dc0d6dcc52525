"""The examples, each as the process a reader would start, with small settings."""

import json
import re
import subprocess
import sys
from pathlib import Path

from scripts.notebook import run
from tests.small_data import write_folder
from tests.timm_here import DEFINE

EXAMPLES = Path(__file__).parent.parent / "examples"


def start(*words, code=None):
    command = [sys.executable, *(["-c", code] if code else []), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_example_is_tested():
    named = set(re.findall(r'EXAMPLES / "(\w+\.py)"', Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == named


def test_plug_into_your_net():
    done = start(EXAMPLES / "plug_into_your_net.py", "--steps", 40, "--size", 32)
    assert done.returncode == 0, done.stderr
    without, with_block = (float(share) for share in re.findall(r"block: ([\d.]+)%", done.stdout))
    assert with_block > without + 15  # what the block is for


def test_plug_into_timm():
    """With timm where it can be made to work, else with the message that says why not."""
    path = EXAMPLES / "plug_into_timm.py"
    words = ["--model", "test_resnet", "--size", 64]
    code = f"{DEFINE}\nimport runpy, sys\nsys.argv[0] = {str(path)!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    done = start(*words, code=code)
    if done.returncode:
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("timm cannot be imported here (")
    else:
        assert done.stdout.count("(1, 3, 64, 64) → (1, 5, 64, 64)") == 2


def test_plug_into_timm_without_timm(tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator x does not exist')")
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"runpy.run_path({str(EXAMPLES / 'plug_into_timm.py')!r}, run_name='__main__')"
    )
    done = start(code=code)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "timm cannot be imported here (operator x does not exist); pip install 'ordnet[timm]'"
    )


def test_train_and_evaluate(tmp_path):
    folder = write_folder(tmp_path / "data")
    words = ["--epochs", 1, "--limit", 8, "--data", f"folder:{folder}", "--out", tmp_path / "run"]
    done = start(EXAMPLES / "train_and_evaluate.py", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dilated-fcn: mIoU 0\.\d+, pixel accuracy 0\.\d+ \(whole\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^ordnet: mIoU 0\.\d+, pixel accuracy", done.stdout, re.MULTILINE)
    assert (tmp_path / "run" / "parse.png").is_file()
    assert (tmp_path / "run" / "ordnet" / "report.html").is_file()


def test_the_notebook_goes_from_a_folder_to_a_parser(tmp_path):
    """Its stored outputs are of the cells that are there, and every cell still runs."""
    stored = json.loads((EXAMPLES / "folder_to_parser.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] and cell["execution_count"] for cell in code)
    text = json.dumps(stored).replace("range(160)", "range(24)").replace("training.epochs=8", "training.epochs=1")
    again = run(json.loads(text), tmp_path)
    fresh = [cell for cell in again["cells"] if cell["cell_type"] == "code"]
    kinds = [[sorted(output.get("data", output)) for output in cell["outputs"]] for cell in code]
    assert [[sorted(output.get("data", output)) for output in cell["outputs"]] for cell in fresh] == kinds
    assert sum("image/png" in output.get("data", {}) for cell in fresh for output in cell["outputs"]) == 2
    assert (tmp_path / "parsed" / "0007.overlay.png").exists()
