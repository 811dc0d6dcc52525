"""The page's files, read once when the server starts."""

from importlib.resources import files

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, Response

from ordnet.inference.samples import sample_picture
from ordnet.serve import documents

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add(app: FastAPI) -> None:
    """/ , /page/…, /sample.jpg and /docs. None of them names an absolute address, so a proxy may move them."""
    folder = files("ordnet.serve") / "page"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if "." in each.name}
    sample = sample_picture().read_bytes()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(found["index.html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in found:
            raise HTTPException(404)
        return Response(found[name], media_type=_KINDS["." + name.rpartition(".")[2]])

    @app.get("/sample.jpg", include_in_schema=False)
    async def sample_file() -> Response:
        return Response(sample, media_type="image/jpeg")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(documents.page(app.openapi()))
