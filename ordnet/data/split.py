"""Dividing pictures into training and validation, so that every class is in both parts where that is possible.

The choice is a pure function of the ids, the classes in their labels, the share and the seed: the same on every
machine, and pictures added later leave nearly all others where they were.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence


def divide(
    ids: Sequence[str], share: float, seed: int, classes: Sequence[Collection[int]] | None = None
) -> dict[str, list[str]]:
    """Ids → the parts "train" and "val", each in the order the ids came.

    About `share` of the pictures go to val, at least one, and at least one stays in train; with a share of 0 or a
    single picture there is no val. `classes` are the class ids in each picture's label; without them only the ids
    decide.
    """
    count = min(max(1, round(share * len(ids))), len(ids) - 1) if share > 0 else 0
    order = sorted(
        range(len(ids)),
        key=lambda place: hashlib.sha256(f"{seed} {ids[place]}".encode(errors="surrogateescape")).digest(),
    )
    val = set(order[:count])
    if classes is not None and count:
        _spread_classes(val, order, classes, count)
    parts = {
        "train": [key for place, key in enumerate(ids) if place not in val],
        "val": [key for place, key in enumerate(ids) if place in val],
    }
    return {name: part for name, part in parts.items() if part}


def _spread_classes(val: set[int], order: Sequence[int], classes: Sequence[Collection[int]], count: int) -> None:
    """Move as few pictures as needed so that each class is in both parts, or in train where a single picture has it."""
    total = Counter(c for place in order for c in classes[place])
    in_val = Counter(c for place in val for c in classes[place])

    def may_leave_val(place: int) -> bool:
        return len(val) > 1 and all(in_val[c] > 1 or total[c] == 1 for c in classes[place])

    def may_leave_train(place: int) -> bool:
        return len(val) < len(order) - 1 and all(total[c] - in_val[c] > 1 for c in classes[place])

    def move(place: int) -> None:
        (val.remove if place in val else val.add)(place)
        in_val.update(dict.fromkeys(classes[place], 1 if place in val else -1))

    # rare classes first: they have the fewest pictures to choose from
    for c in sorted(total, key=lambda c: (total[c], c)):
        holders = [place for place in order if c in classes[place]]
        if in_val[c] == 0 and total[c] > 1:
            movable = [place for place in holders if may_leave_train(place)]
        elif in_val[c] == total[c]:
            movable = [place for place in reversed(holders) if may_leave_val(place)]
        else:
            continue
        if movable:
            move(movable[0])
    # back to the wanted size, with pictures whose classes stay in both parts
    for place in reversed(order):
        if len(val) > count and place in val and may_leave_val(place):
            move(place)
    for place in order:
        if len(val) < count and place not in val and may_leave_train(place):
            move(place)
