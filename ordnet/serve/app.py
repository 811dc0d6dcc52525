"""The application: the API's routes, the page's files, and the answers to anything that goes wrong."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from PIL import Image
from starlette.exceptions import HTTPException

import ordnet
from ordnet.data.pictures import sample_picture
from ordnet.errors import OrdnetError
from ordnet.serve import documents
from ordnet.serve.answers import (
    PNG,
    AttentionAnswer,
    Health,
    ModelAnswer,
    ParseAnswer,
    attention_answer,
    model_answer,
    parse_answer,
    png,
    wanted,
)
from ordnet.serve.decoder import Decoder
from ordnet.serve.engine import AnyParser, Engine, Parsed, Picture, Stop, WorkQueue
from ordnet.serve.guard import Guard, Hosts, Limits, Refusal
from ordnet.serve.upload import PICTURE, Upload, Uploads

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(
    parsers: Mapping[str, AnyParser],
    limits: Limits | None = None,
    token: str | None = None,
    hosts: Hosts | None = None,
) -> Guard:
    """The server for these parsers; the keys are the models' names in answers.

    The first one answers where a request names none. Without `hosts` it answers to any name.
    """
    limits = limits or Limits()
    share = len(parsers)
    engines = {name: Engine(each, limits.keep // share, limits.parses // share) for name, each in parsers.items()}
    queue = WorkQueue(limits.queue, min(engine.at_once for engine in engines.values()))
    decoder = Decoder(limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(decoder.start)
        yield
        await queue.close()
        decoder.close()

    app = FastAPI(
        title="ordnet", version=ordnet.__version__, description=documents.ABOUT, lifespan=lifespan,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    models = {name: model_answer(name, engine, limits, list(engines)) for name, engine in engines.items()}
    _add_routes(app, engines, queue, decoder, limits, models)
    _add_pages(app)
    _add_problems(app)
    # around all of it, so that answers to our own mistakes are guarded too
    return Guard(app, token, hosts)


ModelName = Annotated[str | None, Query(alias="model", description="One of `models` of /v1/model; the first without.")]


def _add_routes(
    app: FastAPI,
    engines: Mapping[str, Engine],
    queue: WorkQueue,
    decoder: Decoder,
    limits: Limits,
    models: Mapping[str, ModelAnswer],
) -> None:
    uploads = Uploads(limits)

    def chosen(name: str | None) -> tuple[Engine, ModelAnswer]:
        name = next(iter(engines)) if name is None else name
        if name not in engines:
            raise Refusal(422, f"There is no model {name!r:.80} here; there are {', '.join(engines)}.")
        return engines[name], models[name]

    async def answer(
        request: Request,
        engine: Engine,
        work: Callable[[Upload, Picture | None, Stop], Any],
        confidence: bool = False,
    ) -> Any:
        """The result of `work` on the upload when its turn comes; its picture is None where a parse is kept already."""
        end = time.monotonic() + limits.seconds
        _refuse_unknown(request)
        queue.refuse_if_full()
        upload = await uploads.read(request)
        decoded: list[Picture] = []

        def decode() -> None:
            start = time.perf_counter()
            pixels = decoder.decode(upload.picture or [])
            decoded.append(Picture(upload.key, pixels, time.perf_counter() - start))

        needed = upload.picture is not None and not engine.knows(upload.key, confidence)
        with queue.place():
            left = max(0.0, end - time.monotonic())
            return await queue.run(
                lambda stop: work(upload, decoded[0] if decoded else None, stop),
                _gone(request), left, decode if needed else None,
            )  # fmt: skip

    def parsed_of(engine: Engine, upload: Upload, picture: Picture | None, confidence: bool, stop: Stop) -> Parsed:
        if picture is None:  # its parse was kept when it came, but may have been dropped since
            known = engine.known(upload.key)
            if known is not None and (known.parse.confidence is not None or not confidence):
                return known
            picture = Picture(upload.key, decoder.decode(upload.picture or []))
        return engine.parse(picture, confidence, stop)

    @app.post("/v1/parse", response_model=ParseAnswer, response_model_exclude_none=True, **documents.PARSE)
    async def parse(
        request: Request,
        accept: Annotated[str | None, Header(description="application/json or image/png.")] = None,
        labels: Annotated[bool, Query(description="JSON: add the label map.")] = False,
        confidence: Annotated[bool, Query(description="JSON: add the confidence map.")] = False,
        what: Annotated[
            Literal["labels", "overlay"] | None,
            Query(
                description="PNG: which picture, labels without it. Given, it asks for a PNG where Accept does not say."
            ),
        ] = None,
        strength: Annotated[float, Query(ge=0, le=1, description="PNG: how much an overlay's colours cover.")] = 0.5,
        names: Annotated[bool, Query(description="PNG: write the classes' names on an overlay.")] = True,
        model_name: ModelName = None,
    ) -> Any:
        """Say what every pixel of a picture shows."""
        kind = PNG if what and accept in (None, "*/*") else wanted(accept)
        engine, model = chosen(model_name)

        def work(upload: Upload, picture: Picture | None, stop: Stop) -> ParseAnswer | bytes:
            if upload.picture is None:
                raise Refusal(422, f"The form has no file in the field {PICTURE!r}.")
            parsed = parsed_of(engine, upload, picture, confidence, stop)
            if kind != PNG:
                return parse_answer(parsed, model, labels, confidence)
            if what == "overlay":
                return png(parsed.parse.overlay(strength, names))
            return png(Image.fromarray(parsed.parse.labels))

        found = await answer(request, engine, work, confidence)
        return Response(found, media_type=PNG) if isinstance(found, bytes) else found

    @app.post("/v1/attention", response_model=AttentionAnswer, **documents.ATTENTION)
    async def attention(request: Request, model_name: ModelName = None) -> Any:
        """Say what the position of one pixel attends to, and what its gate lets through."""
        engine, model = chosen(model_name)
        if not engine.parser.explains:
            raise Refusal(422, f"The model {model.name} cannot show attention: that needs an ordnet checkpoint.")

        def work(upload: Upload, picture: Picture | None, stop: Stop) -> AttentionAnswer:
            x, y = (_whole_number(upload, side) for side in ("x", "y"))
            if upload.picture is not None:
                parsed = parsed_of(engine, upload, picture, False, stop)
            elif "picture" not in upload.fields:
                raise Refusal(
                    422, f"The form needs a file in the field {PICTURE!r}, or the key of a parse in 'picture'."
                )
            elif (known := engine.known(key := upload.fields["picture"])) is not None:
                parsed = known
            elif other := next((name for name, each in engines.items() if each.knows(key, False)), None):
                raise Refusal(404, f"That picture was parsed by {other}: ask with ?model={other}, or send it here too.")
            else:
                raise Refusal(404, f"That picture is not kept any more: send it in the field {PICTURE!r}.")
            return attention_answer(parsed, engine.attend(parsed, x, y, stop))

        return await answer(request, engine, work)

    @app.get("/v1/model", response_model=ModelAnswer, responses=documents.problems(401, 422))
    async def about_model(model_name: ModelName = None) -> ModelAnswer:
        """A model and its classes, the names of all models, and the server's limits."""
        return chosen(model_name)[1]

    @app.get("/healthz", response_model=Health)
    async def health() -> Health:
        """Whether the server answers, and how much it has to do."""
        return Health(
            status="ok", version=ordnet.__version__, working=queue.working, requests=queue.taken, uploads=uploads.count,
            progress=next((each.progress for each in engines.values() if each.progress is not None), None),
        )  # fmt: skip


def _add_pages(app: FastAPI) -> None:
    """/, /page/…, /sample.jpg and /docs, from files that are read once.

    None of them uses an absolute address, so a proxy may move them.
    """
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


def _refuse_unknown(request: Request) -> None:
    """A parameter that the route does not know is a slip, and would be passed over without a word."""
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    if unknown := [name for name in request.query_params if name not in known]:
        raise Refusal(422, f"There is no parameter {unknown[0]!r:.80}; there are {', '.join(known)}.")


def _whole_number(upload: Upload, name: str) -> int:
    if name not in upload.fields:
        raise Refusal(422, f"The form has no field {name!r}: x and y are pixels of the picture.")
    text = upload.fields[name].strip()
    if not text.removeprefix("-").isdecimal():
        raise Refusal(422, f"The field {name!r} must be a whole number of pixels, got {text!r}.")
    return int(text)


async def _gone(request: Request) -> None:
    """Returns when the client has gone away; the body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_problems(app: FastAPI) -> None:
    """Answer whatever goes wrong with {"error": …} and a fitting status."""

    def handler(make: Callable[[Any], Refusal]) -> Callable[[Request, Any], Awaitable[Response]]:
        async def handle(_: Request, error: Any) -> Response:
            refusal = make(error)
            return JSONResponse({"error": refusal.message}, refusal.status, headers=dict(refusal.headers))

        return handle

    app.add_exception_handler(Refusal, handler(lambda error: error))
    app.add_exception_handler(OrdnetError, handler(lambda error: Refusal(422, f"{error}")))
    app.add_exception_handler(RequestValidationError, handler(_bad_parameter))
    app.add_exception_handler(HTTPException, handler(_bad_request))
    app.add_exception_handler(
        Exception, handler(lambda _: Refusal(500, "The server made a mistake; its log says which."))
    )


def _bad_parameter(error: RequestValidationError) -> Refusal:
    return Refusal(
        422, "; ".join(f"{each['loc'][-1]}: {each['msg']}, got {each['input']!r:.80}" for each in error.errors())
    )


def _bad_request(error: HTTPException) -> Refusal:
    return Refusal(error.status_code, f"{error.detail}; /docs lists what there is.", error.headers or {})
