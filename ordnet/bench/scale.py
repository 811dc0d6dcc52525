"""How time grows with the map: our block in both forms, and the exponent fitted to each."""

import math

from ordnet.bench.block import prepare
from ordnet.bench.measure import Row, interleaved
from ordnet.errors import OrdnetError

FORMS = ("ORDNet factored", "ORDNet literal")
LITERAL_BYTES = 4 * 2**30
"""The literal form's map may take this much; larger maps are left to the factored form."""


def run(channels: int, sides: list[int], repeats: int, train: bool) -> list[Row]:
    """One row per form and side of a square map."""
    if len(sides) < 2 or min(sides) < 2:
        raise OrdnetError(f"a growth needs at least two sides of two or more positions, got {sides}")
    contestants = {
        f"{form} {side}x{side}": prepare(form, channels, side, side, train, warm_up=False)
        for side in sorted(set(sides))
        for form in FORMS
        if form == FORMS[0] or 4 * side**4 <= LITERAL_BYTES
    }
    timings = interleaved(contestants, repeats)
    rows = []
    for name, timing in timings.items():
        form, size = name.rsplit(" ", 1)
        ours = timings[f"{FORMS[0]} {size}"].seconds
        side = int(size.split("x")[0])
        extra = {"form": form, "positions": side * side}
        rows.append(Row(name, timing.seconds, timing.seconds / ours, timing.spread, extra=extra))
    return rows


def exponents(rows: list[Row]) -> dict[str, float]:
    """The slope of log time over log positions for each form that has two sizes or more."""
    fitted = {}
    for form in FORMS:
        points = [
            (math.log(row.extra["positions"]), math.log(row.seconds))
            for row in rows
            if row.extra["form"] == form and row.seconds
        ]
        if len(points) > 1:
            fitted[form] = _slope(points)
    return fitted


def _slope(points: list[tuple[float, float]]) -> float:
    """Of the least-squares line."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
