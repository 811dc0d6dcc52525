"""What the OpenAPI document says beyond the routes' own types, and the page made from it.

FastAPI's own page (Swagger UI 5, its files served from here) was tried in its place: 1.7 MB instead of 22 kB, and empty
under the policy of guard.py, because it starts from an inline script.
"""

import json
import re
from html import escape
from typing import Any

from ordnet.serve.answers import Problem

ABOUT = """Scene parsing over HTTP. Pictures come as `multipart/form-data` in the field `image`. Every answer other than
200 is JSON with one field, `error`. Nothing that is sent is written to disk."""

_REASONS = {
    401: "The token is missing or wrong.",
    404: "The parse is not kept any more: send the file.",
    406: "Neither JSON nor PNG is welcome.",
    408: "The upload took too long.",
    413: "Too many bytes or too many pixels.",
    415: "No picture that can be read.",
    422: "A parameter is missing or wrong.",
    503: "Too many requests are under way; Retry-After says when to come back.",
    504: "The answer took too long.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": _REASONS[status]} for status in sorted(statuses)}


def _form(required: list[str], **fields: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": fields}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_UPLOADS = (401, 408, 413, 415, 422, 503, 504)
_FILE = {"type": "string", "format": "binary", "description": "The picture's file."}
PARSE: dict[str, Any] = {
    "openapi_extra": _form(["image"], image=_FILE),
    "responses": {
        200: {
            "description": "By the Accept header: application/json, or image/png with the picture that `what` names.",
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(*_UPLOADS, 406),
    },
}
ATTENTION: dict[str, Any] = {
    "openapi_extra": _form(
        ["x", "y"],
        image=_FILE,
        picture={"type": "string", "description": "In place of the file: `picture` of an earlier parse."},
        x={"type": "integer", "description": "Pixels from the left edge of the upright picture."},
        y={"type": "integer", "description": "Pixels from its upper edge."},
    ),
    "responses": problems(*_UPLOADS, 404),
}


def page(document: dict[str, Any]) -> str:
    """The OpenAPI document as one plain page."""
    routes = "".join(
        _route(document, path, method, about)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>ordnet API</title>
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="page/style.css">
</head>
<body class="documents">
<header class="top">
<a class="brand" href="./">ordnet</a>
<nav><a href="./">Page</a> <a href="openapi.json">openapi.json</a></nav>
</header>
<main>
<h1>API <small>{escape(document["info"]["version"])}</small></h1>
<p>{_prose(document["info"]["description"])}</p>
{routes}
<section class="card route"><h2>Kinds of fields</h2>{_kinds(document)}</section>
</main>
</body>
</html>
"""


def _route(document: dict[str, Any], path: str, method: str, about: dict[str, Any]) -> str:
    form = about.get("requestBody", {}).get("content", {}).get("multipart/form-data", {}).get("schema", {})
    fields = [
        (name, _kind(field) + ("" if name in form["required"] else ", optional"), field.get("description", ""))
        for name, field in form.get("properties", {}).items()
    ]
    parameters = [
        (each["name"], f"{each['in']}, {_kind(each['schema'])}", each.get("description", ""))
        for each in about.get("parameters", [])
    ]
    answers = [(status, "", each["description"]) for status, each in sorted(about["responses"].items())]
    return f"""<section class="card route">
<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>
<p>{_prose(about.get("description", ""))}</p>
{_table("Form fields", fields)}
{_table("Parameters", parameters)}
{_table("Fields of the JSON answer", _answer_fields(document, about))}
{_table("Statuses", answers)}
</section>
"""


def _answer_fields(document: dict[str, Any], about: dict[str, Any]) -> list[tuple[str, str, str]]:
    schema = about["responses"]["200"]["content"]["application/json"]["schema"]
    return _properties(document["components"]["schemas"][_kind(schema)])


def _kinds(document: dict[str, Any]) -> str:
    """The fields of the objects inside answers."""
    schemas = document["components"]["schemas"]
    used = re.findall(r"#/components/schemas/(\w+)", json.dumps(schemas))
    return "".join(_table(name, _properties(schemas[name])) for name in schemas if name in used)


def _properties(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    fields = schema.get("properties", {})
    return [(key, _kind(each), each.get("description", "")) for key, each in fields.items()]


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = {"binary": "file"}.get(schema.get("format", ""), schema.get("type", ""))
    if kind == "array" and "items" in schema:
        kind = f"list of {_kind(schema['items'])}"
    return kind + (f", default {json.dumps(schema['default'])}" if schema.get("default") is not None else "")


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{escape(kind)}</td><td>{_prose(text)}</td></tr>'
        for name, kind, text in rows
    )
    return f"<h3>{escape(title)}</h3><table>{lines}</table>"


def _prose(text: str) -> str:
    """The text escaped, with `code` marked as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
