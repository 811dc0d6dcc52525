"""Class names, colours, and what raw label values mean. `IGNORE` is defined here and nowhere else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ordnet.errors import OrdnetError

IGNORE = 255
"""The class id of pixels that never count, from label loading to metric."""

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Classes:
    """What a data set distinguishes, in class id order."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    ranges: tuple[str, ...] | None = None
    """The range of context each class needs ("short", "middle", "long"), where a data set knows it."""

    def __post_init__(self) -> None:
        if not 0 < len(self.names) <= IGNORE:
            raise OrdnetError(f"a data set has between 1 and {IGNORE} classes, not {len(self.names)}")
        if len(self.colours) != len(self.names):
            raise OrdnetError(f"{len(self.names)} class names, but {len(self.colours)} colours: give each class one")

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class LabelRule:
    """How raw label values become class ids: raw id → class id, where IGNORE means "never counts"."""

    raw_to_class: Mapping[int, int]
    _table: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # one look-up per pixel; -1 marks values that no rule names
        table = np.full(max(max(self.raw_to_class), 255) + 2, -1, dtype=np.int16)
        for raw, class_id in self.raw_to_class.items():
            table[raw] = class_id
        object.__setattr__(self, "_table", table)

    def encode(self, raw: np.ndarray) -> np.ndarray:
        """Raw values (H, W) of any integer type → class ids (H, W) uint8. A value no rule names is an error."""
        # values beyond the table all land on its last entry, which is -1
        classes = self._table[np.clip(raw, -1, len(self._table) - 1)]
        if (classes < 0).any():
            raise OutsideClasses(self.outside(raw), sorted(self.raw_to_class))
        return classes.astype(np.uint8)

    def outside(self, raw: np.ndarray) -> dict[int, int]:
        """Values that no rule names → how many pixels have them."""
        values, counts = np.unique(raw, return_counts=True)
        return {int(v): int(n) for v, n in zip(values, counts, strict=True) if int(v) not in self.raw_to_class}

    def decode(self, class_ids: np.ndarray) -> np.ndarray:
        """Class ids → raw values, for servers that want the original ids back. Ignored pixels become raw 0."""
        raw_of = np.zeros(256, dtype=np.uint16)
        for raw, class_id in self.raw_to_class.items():
            if class_id != IGNORE:
                raw_of[class_id] = raw
        return raw_of[class_ids]


class OutsideClasses(OrdnetError):
    """A label holds values that no class has."""

    def __init__(self, values: dict[int, int], expected: Sequence[int], file: str = "") -> None:
        self.values = values
        self.expected = expected
        self.file = file
        found = ", ".join(f"{value} ({count:,} pixels)" for value, count in list(values.items())[:8])
        more = f" and {len(values) - 8} more values" if len(values) > 8 else ""
        span = f"{expected[0]}…{expected[-1]}" if len(expected) > 8 else ", ".join(map(str, expected))
        where = f"{file}: " if file else ""
        super().__init__(f"{where}label values outside the classes: {found}{more}; expected {span}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return OutsideClasses, (self.values, self.expected, self.file)  # so that it survives the way out of a worker


def identity_rule(count: int) -> LabelRule:
    """Raw value = class id, 255 ignored: the rule of `folder:` index labels."""
    return LabelRule({**{i: i for i in range(count)}, IGNORE: IGNORE})
