"""Rectangles of a picture or a feature map: tiles, what surrounds them, and where they meet."""

Area = tuple[slice, slice]
"""Rows and columns; both have a start and a stop."""


def tiles(height: int, width: int, size: int, step: int = 1) -> list[Area]:
    """Tiles of at most `size` x `size`, by rows: as few as possible, as even as possible, none overlapping.

    With a `step` they begin at its multiples, and `size` is brought to the next multiple below (but not to 0).
    """
    return [(rows, columns) for rows in _spans(height, size, step) for columns in _spans(width, size, step)]


def _spans(length: int, size: int, step: int) -> list[slice]:
    steps, size = -(-length // step), max(1, size // step)
    count = -(-steps // size)
    return [slice(i * steps // count * step, min((i + 1) * steps // count * step, length)) for i in range(count)]


def parts_of(area: Area, size: int, step: int = 1) -> list[Area]:
    """The same of one area, which begins at a multiple of `step`."""
    (top, bottom), (left, right) = ((span.start, span.stop) for span in area)
    return [
        (slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop))
        for rows, columns in tiles(bottom - top, right - left, size, step)
    ]


def grown(area: Area, by: int, height: int, width: int) -> Area:
    """The area and `by` more on every side, as far as a map of `height` x `width` reaches."""
    rows, columns = area
    return (
        slice(max(rows.start - by, 0), min(rows.stop + by, height)),
        slice(max(columns.start - by, 0), min(columns.stop + by, width)),
    )


def inside(area: Area, outer: Area) -> Area:
    """The same area, counted from the top left corner of `outer`."""
    top, left = outer[0].start, outer[1].start
    return slice(area[0].start - top, area[0].stop - top), slice(area[1].start - left, area[1].stop - left)


def overlap(one: Area, other: Area) -> Area | None:
    """What both areas cover; None where they do not meet."""
    rows, columns = (slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def scaled(area: Area, factor: int, height: int, width: int) -> Area:
    """The same area on a map whose positions are `factor` times as many, cut at its sides of `height` x `width`."""
    rows, columns = area
    return (
        slice(rows.start * factor, min(rows.stop * factor, height)),
        slice(columns.start * factor, min(columns.stop * factor, width)),
    )
