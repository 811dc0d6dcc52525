"""`ordnet serve`: a page and an API around one or more models."""

from typing import Annotated

import typer

from ordnet.errors import OrdnetError


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Shipped models' names, .safetensors or .onnx files, between which the page can switch; all shipped "
            "models without any.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    max_megabytes: Annotated[float, typer.Option(min=0.001, help="The largest file that is taken.")] = 20,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="The largest picture that is taken.")] = 25,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait while one is computed.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Until a request is given up.")] = 120,
    keep: Annotated[
        float, typer.Option(min=0, metavar="MEGABYTES", help="How much of the last parses is kept, for clicks.")
    ] = 200,
    connections: Annotated[int, typer.Option(min=8, help="Connections at once; half of them from one address.")] = 128,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer to this name, as a proxy passes it on; '*' answers to any."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="ORDNET_TOKEN", help="Ask for this as a bearer token under /v1/.")
    ] = None,
) -> None:
    """Open a page to try a model on, and an API for programs (docs/serving.md).

    Everything that comes in is bounded, computed one after the other, and kept in memory only.
    """
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OrdnetError(f"serving needs {error.name}: pip install 'ordnet[serve]'") from None
    if token is not None and not token.strip():
        raise OrdnetError("the token is empty: give one, or leave --token and ORDNET_TOKEN away")
    from ordnet.serve.guard import Limits
    from ordnet.serve.run import bound

    limits = Limits(
        bytes=round(max_megabytes * 1e6), pixels=round(max_megapixels * 1e6), queue=queue, seconds=timeout,
        keep=round(keep * 1e6), connections=connections, per_address=max(4, connections // 2),
    )  # fmt: skip
    with bound(host, port) as listener:
        from ordnet.model.card import shipped_models
        from ordnet.serve.run import run

        run(models or list(shipped_models()), listener, limits, token, allowed_host or [])
