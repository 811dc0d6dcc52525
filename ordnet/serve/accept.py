"""Which of two kinds of answer a request asks for."""

from ordnet.serve.limits import Refusal

JSON, PNG = "application/json", "image/png"


def wanted(accept: str | None) -> str:
    """JSON or PNG by the Accept header; JSON where both are as welcome."""
    best = {kind: _welcome(accept or "*/*", kind) for kind in (JSON, PNG)}
    if not any(best.values()):
        raise Refusal(406, f"Ask for {JSON} or for {PNG} in the Accept header; it says {accept!r}.")
    return PNG if best[PNG] > best[JSON] else JSON


def _welcome(accept: str, kind: str) -> float:
    """The quality (0 to 1) of the range that fits the kind most closely."""
    found = (-1, 0.0)
    for part in accept.split(","):
        name, *settings = (word.strip().lower() for word in part.split(";"))
        fits = {kind: 2, kind.split("/")[0] + "/*": 1, "*/*": 0}.get(name)
        if fits is not None:
            found = max(found, (fits, _quality(settings)))
    return found[1]


def _quality(settings: list[str]) -> float:
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
