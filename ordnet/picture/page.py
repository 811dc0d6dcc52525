"""An HTML page that needs nothing beside it: opens from disk, light and dark, on a phone and on paper.

Whatever comes in as text is escaped here; only what is called `html` goes onto the page as it is.
"""

import base64
import html as escaping
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ordnet.picture.overlay import Colour
from ordnet.picture.page_style import STYLE

_SMALL = 256 * 256
"""Pictures of up to so many pixels are stored without loss."""
_MANY_BARS = 16
"""More bars than these stand in two columns where there is room."""


@dataclass(frozen=True)
class Section:
    title: str
    html: str


@dataclass(frozen=True)
class Bar:
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
    """Safe inside an element and inside quotes; control characters, which no page may hold, become �."""
    return escaping.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "�", str(value)))


def paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def figure(
    image: Image.Image | Path, caption: str = "", *, alt: str = "", chart: bool = False, wide: bool = False
) -> str:
    """A picture, or a file of one, with its caption; `alt` describes it to those who cannot see it.

    A `chart` is dark ink on white paper, and is turned round in the dark. A `wide` picture is never made so small
    that it cannot be read: on a narrow screen it scrolls by itself.
    """
    classes = " ".join(name for name, wanted in (("chart", chart), ("wide", wide)) if wanted)
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    picture = f'<img alt="{text(alt or caption)}" src="{data_uri(image)}">'
    return f'<figure class="{classes}"><div{" tabindex=0" if wide else ""}>{picture}</div>{below}</figure>'


def grid(*html: str) -> str:
    """Beside each other as far as there is room."""
    return f'<div class="grid">{"".join(html)}</div>'


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
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


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


def _rgb(colour: Colour) -> str:
    red, green, blue = map(int, colour)
    return f"rgb({red},{green},{blue})"


def _anchor(title: str, place: int) -> str:
    """Unlike any other section's, whatever the title."""
    return f"{place + 1}-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
