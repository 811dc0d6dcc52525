"""Run a notebook's cells in one process and store what they show: python scripts/notebook.py FILE.ipynb [FOLDER]

It knows the little that our notebook needs: Python, `!command` lines, printed text, and a last expression that shows
itself (_repr_html_, _repr_png_ or repr). So neither making nor testing the notebook needs Jupyter.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with fresh outputs; its cells are run in `folder`. An exception in a cell is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        cells: list[dict[str, Any]] = []
        number = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                outputs = _run_cell("".join(cell["source"]), names, number)
                cell = {**cell, "execution_count": number, "outputs": outputs}
            cells.append(cell)
    finally:
        os.chdir(before)
    return {**notebook, "cells": cells}


def _run_cell(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    printed = io.StringIO()
    shown = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        if source.startswith("!"):
            for command in re.findall(r"^!(.+)$", source.replace("\\\n", ""), flags=re.M):
                printed.write(_command(command))
        else:
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"cell {number}", "exec"), names)
            if last is not None:
                shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # type: ignore[attr-defined]
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if shown is not None:
        data: dict[str, Any] = {"text/plain": [repr(shown)]}
        if hasattr(shown, "_repr_png_"):
            data["image/png"] = base64.b64encode(shown._repr_png_()).decode()
        outputs.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return outputs


def _command(words: str) -> str:
    """What a shell command prints, without progress; `ordnet` is the one beside this Python."""
    words = re.sub(r"^ordnet\b", f'"{sys.executable}" -m ordnet', words)
    done = subprocess.run(words, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stdout}")
    return done.stdout


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        made = run(json.loads(path.read_text(encoding="utf-8")), Path(folder))
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
