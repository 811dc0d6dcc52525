"""A self-contained HTML page: opens from disk, light and dark, on a phone and on paper.

Whatever comes in as text is escaped here; only what is called `html` goes onto the page as it is.
"""

import base64
import html as escaping
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.picture.attention_map import AttentionRow, Panel, Scale, coloured, number, panels
from ordnet.picture.overlay import Colour

_SMALL = 256 * 256
"""Pictures of up to this many pixels are stored without loss."""
_MANY_BARS = 16
"""More bars than this are set in two columns where there is room."""
_LONG_WORD = 22
"""Words with more letters may be broken anywhere, so that no table is wider than a phone."""
_SHOWN = 0.005
"""Smaller shares of a confusion matrix are left blank."""
_ACROSS = 4
"""At most this many panels of attention are side by side."""
_STEPS = 13
"""Colours of a scale's bar; the browser mixes those between."""


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading that the top links to."""

    title: str
    html: str


@dataclass(frozen=True)
class Bar:
    """One horizontal bar of a list, such as a class's IoU."""

    name: str
    share: float | None
    """The bar's length, 0..1; without it there is only the text."""
    text: str
    colour: Colour
    note: str = ""
    """A few words beside the name."""


def page(title: str, sections: Iterable[Section], lead: str = "") -> str:
    """The whole page: heading, `lead` below it, links to the sections, the sections."""
    sections = list(sections)
    links = "".join(f'<a href="#{_anchor(s.title, i)}">{text(s.title)}</a>' for i, s in enumerate(sections))
    body = "".join(
        f'<section id="{_anchor(s.title, i)}"><h2>{text(s.title)}</h2>{s.html}</section>'
        for i, s in enumerate(sections)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{text(title)}</h1>{paragraph(lead) if lead else ''}<nav>{links}</nav></header>"
        f"<main>{body}</main></body></html>\n"
    )


def section(title: str, *html: str) -> Section:
    return Section(title, "".join(html))


def text(value: object) -> str:
    """Text made safe for elements and quotes; control characters, which no page may hold, become �."""
    return escaping.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "�", str(value)))


def paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def figure(image: Image.Image | Path, caption: str = "", *, alt: str = "", chart: bool = False) -> str:
    """A picture, or a file of one, with its caption; `alt` describes it to those who cannot see it.

    A `chart` is dark ink on white paper, and is inverted in dark mode.
    """
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    kind = ' class="chart"' if chart else ""
    return f'<figure{kind}><img alt="{text(alt or caption)}" src="{data_uri(image)}">{below}</figure>'


def attention(row: AttentionRow, caption: str) -> str:
    """The panels of one position, as many side by side as there is room for.

    The words are the page's and not the drawing's, so that they stay legible however small the pictures get.
    """
    shown = [_panel(panel) for panel in panels(row)]
    # five would be too small in one row
    across = len(shown) if len(shown) <= _ACROSS else 3
    grid = f'<div class="panels" style="--across:{across}">{"".join(shown)}</div>'
    return f"<figure>{grid}<figcaption>{text(caption)}</figcaption></figure>"


def _panel(panel: Panel) -> str:
    swatch = f'<i class="swatch" style="background:{_rgb(panel.swatch)}"></i>' if panel.swatch else ""
    notes = "".join(
        f"<small>{swatch if place == 0 else ''}{text(note)}</small>" for place, note in enumerate(panel.notes)
    )
    return (
        f"<div><p><b>{text(panel.title)}</b><small>{text(panel.subtitle)}</small></p>"
        f'<img alt="{text(f"{panel.title}: {panel.subtitle}")}" src="{data_uri(panel.picture)}">'
        f"<p>{_scale(panel.scale) if panel.scale else ''}{notes}</p></div>"
    )


def _scale(scale: Scale) -> str:
    """A bar of the colours, and the numbers at its ends and in its middle."""
    places = coloured(np.linspace(scale.start, scale.end, _STEPS), scale.low, scale.high, scale.colours)
    ramp = ",".join(_rgb(colour) for colour in places)
    ends = "".join(f"<span>{number(value)}</span>" for value in np.linspace(scale.start, scale.end, 3))
    return (
        f'<i class="scale" style="background:linear-gradient(to right,{ramp})"></i><small class="ends">{ends}</small>'
    )


def grid(*html: str) -> str:
    """Parts placed side by side, as far as there is room."""
    return f'<div class="grid">{"".join(html)}</div>'


def quad(*html: str) -> str:
    """Four parts in a row, or two on a narrow screen."""
    return f'<div class="quad">{"".join(html)}</div>'


def data_uri(image: Image.Image | Path) -> str:
    if isinstance(image, Path):
        kind = {".svg": "svg+xml", ".png": "png", ".jpg": "jpeg"}[image.suffix]
        content = image.read_bytes()
    else:
        kind = "png" if image.width * image.height <= _SMALL else "jpeg"
        buffer = io.BytesIO()
        # colours at full resolution: classes are told apart by them
        options = {"quality": 88, "subsampling": 0} if kind == "jpeg" else {}
        image.convert("RGB").save(buffer, kind, **options)
        content = buffer.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """Large numbers with a few words below: (words, number)."""
    shown = "".join(f"<div><dd>{text(value)}</dd><dt>{text(words)}</dt></div>" for words, value in figures)
    return f'<dl class="tiles">{shown}</dl>'


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """The first cell of each row names it."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row"{_words(name)}</th>{"".join(f"<td{_words(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


def _words(cell: str) -> str:
    """The end of a cell's tag and its text. Words stay whole; paths break after a slash, longer words anywhere."""
    parts = re.split(r"(?<=[/\\])", cell)
    longest = max((len(word) for part in parts for word in part.split()), default=0)
    return f"{' class=long' if longest > _LONG_WORD else ''}>{'<wbr>'.join(map(text, parts))}"


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars in their colours, each with its name and text."""
    shown = "".join(
        f'<li><span class="name" title="{text(row.name)} {text(row.note)}">{text(row.name)}{_note(row.note)}</span>'
        f'<span class="bar">{_stroke(row)}</span><span class="value">{text(row.text)}</span></li>'
        for row in rows
    )
    return f'<ul class="bars{" many" if len(rows) > _MANY_BARS else ""}">{shown}</ul>'


def legend(key: Iterable[tuple[str, Colour]]) -> str:
    shown = "".join(
        f'<li><i style="background:{_rgb(colour)}"></i><span>{text(name)}</span></li>' for name, colour in key
    )
    return f'<ul class="legend">{shown}</ul>'


def folded(title: str, content: str) -> str:
    """Preformatted text that opens on a click."""
    return f"<details><summary>{text(title)}</summary><pre>{text(content)}</pre></details>"


def _stroke(row: Bar) -> str:
    if row.share is None:
        return ""
    width = 100 * min(1.0, max(0.0, row.share))
    return f'<i style="width:{width:.2f}%;background:{_rgb(row.colour)}"></i>'


def _note(words: str) -> str:
    return f" <small>{text(words)}</small>" if words else ""


def _rgb(colour: Colour | np.ndarray) -> str:
    red, green, blue = map(int, colour)
    return f"rgb({red},{green},{blue})"


def _anchor(title: str, place: int) -> str:
    """An anchor unlike any other section's, whatever the title."""
    return f"{place + 1}-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def confusion_table(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Counts (K, K), rows the truth: each cell is a share of its row's pixels, in per cent, the darker the more.

    A table and not a picture: the names are text in any script, and it follows the theme.
    """
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    head = "".join(f'<th scope="col" title="{text(name)}"><span>{text(name)}</span></th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row" title="{text(name)}">{text(name)}</th>'
        f"{''.join(_cell(share, names, row, column) for column, share in enumerate(shares[row]))}</tr>"
        for row, name in enumerate(names)
    )
    return (
        '<div class="matrix" tabindex="0"><table><thead><tr><th scope="col"><small>is ↓ taken for →</small></th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(share: float, names: Sequence[str], row: int, column: int) -> str:
    if share < _SHOWN:
        return "<td></td>"
    words = "" if row == column else f' title="{text(f"{names[row]} taken for {names[column]}")}"'
    # the square root: a few per cent are already a mistake worth seeing
    return f'<td style="background:rgb(var(--heat) / {share**0.5:.2f})"{words}>{100 * share:.0f}</td>'


STYLE = """
:root { color-scheme: light dark; --ink: #1c2529; --paper: #fff; --soft: #55636a; --line: #d5dde1; --well: #f2f5f6;
  --link: #0b5f8a; --heat: 125 178 226; --shade: #0f202859; --chart: none; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e9ec; --paper: #15191c; --soft: #9fadb4;
  --line: #38434a; --well: #1e2529; --link: #7cc4ec; --heat: 42 95 143; --shade: #dcebf273;
  --chart: invert(.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 64rem;
  margin: 2rem auto 4rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
p { color: var(--soft); margin: .3rem 0 .8rem; max-width: 50rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .6rem; margin: .8rem 0; }
.tiles div { background: var(--well); border-radius: 8px; padding: .6rem .8rem; display: flex;
  flex-direction: column; justify-content: space-between; }
.tiles dd { font-size: 1.5rem; font-weight: 600; margin: 0; font-variant-numeric: tabular-nums; }
.tiles dt { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem; }
td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
.long { overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 400; font-size: .85rem; }
tbody th { font-weight: 400; min-width: 8.5rem; } td { min-width: 4.6rem; }
td:last-child, th:last-child { padding-right: 0; }
ul { list-style: none; margin: .4rem 0 1rem; padding: 0; }
.bars li { display: grid; grid-template-columns: minmax(0, 13rem) minmax(0, 1fr) 4rem; gap: .7rem; align-items: center;
  padding: .1rem 0; break-inside: avoid; }
.bars.many { columns: 2 24rem; column-gap: 2.5rem; }
.bars .name { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;
  line-height: 1.25; }
.bars small { color: var(--soft); white-space: nowrap; }
.bars .bar { background: var(--well); border-radius: 3px; height: .95rem; overflow: hidden; }
.bars .bar i { display: block; height: 100%; min-width: 2px; border: 1px solid rgb(110 125 133 / .75);
  border-radius: 3px; }
.bars .value { text-align: right; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; max-width: 100%; }
.legend span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; max-width: 18rem; }
.legend i { flex: none; width: .95rem; height: .95rem; border-radius: 3px; border: 1px solid rgb(110 125 133 / .75); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .8rem; }
.quad { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .5rem; margin-bottom: .8rem; }
.panels { display: grid; grid-template-columns: repeat(var(--across), minmax(0, 1fr)); gap: 0 1rem;
  margin-top: 1rem; }
.panels > div { display: grid; grid-row: span 3; grid-template-rows: subgrid; align-items: start; align-content: start;
  break-inside: avoid; margin-bottom: 1rem; }
.panels p { margin: 0 0 .3rem; line-height: 1.3; } .panels b { color: var(--ink); font-weight: 600; }
.panels small { display: block; font-size: .8rem; } .panels img + p { margin-top: .3rem; }
.panels .ends { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
.panels .scale { display: block; height: .7rem; margin-top: .1rem; border: 1px solid rgb(110 125 133 / .75); }
.panels .swatch { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; border-radius: 3px;
  vertical-align: -.1rem; border: 1px solid rgb(110 125 133 / .75); }
.panels img { width: auto; max-width: 100%; }
figure { margin: 0; break-inside: avoid; } section > figure { margin-bottom: .9rem; }
figure img { display: block; width: 100%; height: auto; border-radius: 5px; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .2rem; }
.chart img { background: #fff; filter: var(--chart); }
article { break-inside: avoid; }
/* what is too wide scrolls by itself; a shadow lies on the side where there is more */
.matrix, .wide > div { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left top / 1rem calc(100% - 2px) no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right top / 1rem calc(100% - 2px) no-repeat scroll; }
.matrix { margin: .4rem 0 .8rem; }
.matrix table { width: auto; margin: 0; font-size: .85rem; border-collapse: separate; border-spacing: 0; }
.matrix td { min-width: 2.1rem; height: 2.1rem; padding: 0; text-align: center; vertical-align: middle;
  border: 1px solid var(--line); }
.matrix th { min-width: 0; padding: 0 .4rem 0 0; border: 0; font-size: .85rem; vertical-align: middle; }
.matrix tbody th, .matrix thead th:first-child { position: sticky; left: 0; z-index: 1;
  background: var(--paper);
  min-width: 6rem; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.matrix thead th { vertical-align: bottom; padding: 0 0 .3rem; } .matrix thead th:first-child { white-space: normal; }
.matrix thead span { display: block; writing-mode: vertical-rl; transform: rotate(180deg); max-height: 9rem;
  margin: auto; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--link); }
pre { overflow-x: auto; background: var(--well); border-radius: 6px; padding: .8rem; font-size: .85rem;
  overflow-wrap: normal; }
@media (max-width: 40rem) { .matrix td { min-width: 1.8rem; } .panels { gap: 0 .6rem; }
  .quad, .panels { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  table { font-size: .85rem; } tbody th { min-width: 7rem; } td, th { padding-right: .5rem; }
  .wide table { font-size: .8rem; } .wide td { min-width: 0; } .wide tbody th { min-width: 5rem; }
  .bars li { grid-template-columns: minmax(0, 8rem) minmax(0, 1fr) 3.6rem; gap: .5rem; } }
@media print { nav { display: none; } body { max-width: none; margin: 0; font-size: 11pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .matrix, .wide > div { background: none; }
  .matrix table { font-size: 7pt; } .matrix td { min-width: 0; height: auto; } }
"""
"""One style sheet for all pages."""
