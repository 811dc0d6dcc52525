"""One HTML page per run: self-contained, opens from disk, light and dark."""

import base64
import html
from pathlib import Path
from typing import Any

from ordnet.files import write_text

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2529; --paper: #fff; --soft: #5d6b72; --line: #d8dfe2; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e3e9ec; --paper: #14191c; --soft: #97a5ac; --line: #333d42; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2rem .8rem .2rem 0; text-align: left;
  border-bottom: 1px solid var(--line); }} td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
img {{ max-width: 100%; background: #fff; border-radius: 6px; }}
pre {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; font-size: .85rem; }}
p {{ color: var(--soft); }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<h2>Curves</h2><img alt="Loss, scores and vitals over the epochs" src="data:image/png;base64,{curves}">
<h2>IoU by class</h2>{classes}
<h2>Settings</h2><pre>{settings}</pre>
</body></html>
"""


def report(path: Path, settings: str, epochs: list[dict[str, Any]], curves: Path) -> None:
    """`settings` as YAML, `epochs` the log's epoch records, `curves` the picture drawn from them."""
    last = epochs[-1]
    figures = [f"mIoU {last['miou']:.4f}" if last.get("miou") is not None else "mIoU –"]
    if last.get("pixel_accuracy") is not None:
        figures.append(f"pixel accuracy {last['pixel_accuracy']:.4f}")
    summary = (
        f"{', '.join(figures)} on {last['images']:,} pictures of {last['data']} {last['split']}, "
        f"protocol {last['protocol']}, after {last['epoch']} epochs."
    )
    page = _PAGE.format(
        title=html.escape(f"ordnet · {path.resolve().parent.name}"),
        summary=html.escape(summary),
        curves=base64.b64encode(curves.read_bytes()).decode(),
        classes=_classes(last["per_class_iou"]),
        settings=html.escape(settings),
    )
    write_text(path, page)


def _classes(iou: dict[str, float | None]) -> str:
    rows = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{"–" if value is None else f"{value:.4f}"}</td></tr>'
        for name, value in iou.items()
    )
    return f"<table><tr><th>class</th><th>IoU</th></tr>{rows}</table>"
