"""An ablation's table: mean and spread over the seeds, beside the paper's figures.

A difference that the seeds cannot tell from chance is called undecided.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ordnet.data.catalogue import short_name
from ordnet.files import write_text
from ordnet.paper import ABLATIONS
from ordnet.picture.charts import ablation_chart, cost_chart

VITALS = ("added", "varying", "gate_mean", "gate_spread")
"""The block's vital signs at the end of training (ordnet.training.monitor)."""


@dataclass(frozen=True)
class Figure:
    """One measure over the seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; one seed has none."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.spread is None else f" ± {self.spread:.4f}")


def undecided(a: Figure, b: Figure) -> bool:
    """Whether the difference of the means is within the larger spread; with one seed nothing is decided."""
    if a.spread is None or b.spread is None:
        return True
    return abs(a.mean - b.mean) <= max(a.spread, b.spread)


@dataclass(frozen=True)
class TableRow:
    """The figures of one trained network."""

    name: str
    label: str
    records: Sequence[dict[str, Any]]
    """The last evaluation of each seed."""
    cost: dict[str, float] = field(default_factory=dict)

    def figure(self, measure: str) -> Figure | None:
        """`miou`, `pixel_accuracy`, a vital sign, or `range:middle`."""
        if measure.startswith("range:"):
            found = [record.get("miou_by_range", {}).get(measure.removeprefix("range:")) for record in self.records]
        else:
            found = [record.get(measure) for record in self.records]
        known = tuple(float(value) for value in found if value is not None)
        return Figure(known) if len(known) == len(self.records) else None


@dataclass(frozen=True)
class Table:
    """An ablation's rows beside the paper's, in every format that is written."""

    name: str
    data: str
    split: str
    epochs: int
    seeds: int
    rows: Sequence[TableRow]

    @property
    def title(self) -> str:
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        epochs = "one epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"{self.name} on {short_name(self.data)} {self.split}, {epochs}, cross-entropy, protocol whole, {seeds}"

    @property
    def paper(self) -> dict[str, dict[str, float]]:
        """The paper's figures by row; none for a table that it does not have."""
        return ABLATIONS.get(self.name, {})

    @property
    def timed(self) -> bool:
        """Whether the rows' costs were measured, not only counted."""
        return all("ms" in row.cost for row in self.rows)

    @property
    def note(self) -> str:
        """What the columns mean."""
        return " ".join([NOTE, *([TIMED] if self.timed else []), *([PAPER] if self.paper else [])])

    @property
    def ranges(self) -> list[str]:
        return list(self.rows[0].records[0].get("miou_by_range", {}))

    @property
    def measures(self) -> list[str]:
        return ["miou", "pixel_accuracy", *(f"range:{name}" for name in self.ranges)]

    def lines(self) -> tuple[list[str], list[list[str]]]:
        """Column titles and rows, as text."""
        titles = ["network", "mIoU", "against the first row", "pixel accuracy", *(f"{r} range" for r in self.ranges)]
        titles += ["gate", "GFLOPs", "literal GFLOPs"]
        titles += ["ms", "params M"] if self.timed else []
        titles += ["paper mIoU", "paper pixAcc"] if self.paper else []
        return titles, [self._line(row) for row in self.rows]

    def _line(self, row: TableRow) -> list[str]:
        paper = self.paper.get(row.name, {})
        gate = [row.figure(name) for name in ("gate_mean", "gate_spread")]
        return [
            row.label,
            _text(row.figure("miou")),
            self._difference(row),
            _text(row.figure("pixel_accuracy")),
            *(_text(row.figure(f"range:{name}")) for name in self.ranges),
            f"{gate[0].mean:.2f} ± {gate[1].mean:.2f}" if gate[0] and gate[1] else "–",
            *(f"{row.cost[key]:.2f}" if key in row.cost else "–" for key in ("gflops", "gflops_literal")),
            *(f"{row.cost[key]:.2f}" for key in ("ms", "params_M") if self.timed),
            *(f"{paper[key]:.2f}" if key in paper else "–" for key in ("miou", "pixel_accuracy") if self.paper),
        ]

    def _difference(self, row: TableRow) -> str:
        first, own = self.rows[0].figure("miou"), row.figure("miou")
        if row is self.rows[0] or first is None or own is None:
            return "–"
        return f"{own.mean - first.mean:+.4f}" + (" undecided" if undecided(first, own) else "")

    def order(self) -> Iterator[dict[str, Any]]:
        """The paper's rows from worst to best, neighbours compared here: does the order hold?"""
        paper = self.paper
        ranked = sorted((row for row in self.rows if row.name in paper), key=lambda row: paper[row.name]["miou"])
        for lower, higher in pairwise(ranked):
            ours_lower, ours_higher = lower.figure("miou"), higher.figure("miou")
            if ours_lower is None or ours_higher is None:
                continue
            difference = ours_higher.mean - ours_lower.mean
            verdict = "agrees" if difference > 0 else "contradicts"
            yield {
                "better_in_paper": higher.label,
                "than": lower.label,
                "paper": round(paper[higher.name]["miou"] - paper[lower.name]["miou"], 2),
                "ours": 100 * difference,
                "verdict": "undecided" if undecided(ours_lower, ours_higher) else verdict,
            }

    def order_lines(self) -> list[str]:
        return [
            f"{pair['better_in_paper']} over {pair['than']}: paper +{pair['paper']:.2f}, "
            f"ours {pair['ours']:+.2f} points of mIoU: {pair['verdict']}"
            for pair in self.order()
        ]

    def markdown(self) -> str:
        titles, lines = self.lines()
        rule = ["---"] + ["---:"] * (len(titles) - 1)
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *lines))
        text = f"# {self.title}\n\n{table}\n\n{self.note}\n"
        if not self.paper:
            return text
        order = "\n".join(f"- {line}" for line in self.order_lines())
        return f"{text}\nThe paper's order, neighbour by neighbour:\n\n{order}\n"

    def plain(self) -> dict[str, Any]:
        rows = []
        for row in self.rows:
            figures = {
                name: None if (f := row.figure(name)) is None else
                {"mean": f.mean, "spread": f.spread, "values": list(f.values)}
                for name in (*self.measures, *VITALS)
            }  # fmt: skip
            paper = self.paper.get(row.name)
            rows.append({"name": row.name, "label": row.label, **figures, **row.cost, "paper": paper})
        facts = {"data": self.data, "split": self.split, "epochs": self.epochs, "seeds": self.seeds}
        return {"ablation": self.name, **facts, "protocol": "whole", "rows": rows, "order": list(self.order())}

    def write(self, folder: Path) -> list[Path]:
        """NAME.md, .csv, .json and .png, and where the rows were timed NAME-cost.png."""
        written = [folder / f"{self.name}{suffix}" for suffix in (".md", ".csv", ".json", ".png")]
        write_text(written[0], self.markdown())
        text = io.StringIO()
        titles, lines = self.lines()
        csv.writer(text).writerows([titles, *lines])
        write_text(written[1], text.getvalue())
        write_text(written[2], json.dumps(self.plain(), indent=1) + "\n")
        shown = ["miou", *(f"range:{name}" for name in self.ranges)]
        ablation_chart(
            written[3], self.title.replace(", ", "\n", 1), [row.label for row in self.rows],
            {_words(measure): [_values(row.figure(measure)) for row in self.rows] for measure in shown},
        )  # fmt: skip
        if self.timed:
            written.append(folder / f"{self.name}-cost.png")
            costs = {"GFLOPs of a crop": "gflops", "milliseconds a crop": "ms"}
            cost_chart(
                written[-1], self.title.replace(", ", "\n", 1), [row.label for row in self.rows],
                [_values(row.figure("miou")) for row in self.rows],
                {words: [row.cost[key] for row in self.rows] for words, key in costs.items()},
            )  # fmt: skip
        return written


NOTE = (
    "Mean ± standard deviation over the seeds, of the weights after the last epoch. A difference within the larger of "
    "two spreads is undecided. GFLOPs of one picture of the training crop: as computed (factored), and with the maps "
    "built (literal). The gate column is mean ± spread over the map in the last training step."
)
PAPER = "The paper's figures are for PASCAL-Context with ResNet-50."
TIMED = (
    "Milliseconds are of one such picture, networks in turns, made ready as for parsing. The methods beside ours have "
    "the layer sizes of their papers, or as many channels as come in where that is fewer."
)


def _text(figure: Figure | None) -> str:
    return "–" if figure is None else str(figure)


def _words(measure: str) -> str:
    return "mIoU" if measure == "miou" else f"mIoU, {measure.removeprefix('range:')} range"


def _values(figure: Figure | None) -> tuple[float, ...]:
    return () if figure is None else figure.values
