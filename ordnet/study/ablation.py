"""One of the paper's ablation tables: every row trained with several seeds, each run in its own folder.

OUT/basic-sa/seed-0/ and so on hold the runs, shared by all tables made in OUT; OUT/branches.md, .csv, .json and
.png the table. A finished run is not run again, a killed one continues.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ordnet.config import override
from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.model.build import build_from
from ordnet.model.flops import gflops
from ordnet.study.cells import Cell, base_settings, cells_of
from ordnet.study.runs import Job, train_jobs
from ordnet.study.table import Row, Table


def ablate(
    table: str,
    data: str,
    out: Path,
    *,
    recipe: str | None = None,
    seeds: int = 3,
    changes: Sequence[str] = (),
    split: str | None = None,
    jobs: int = 1,
) -> Table:
    """Train what is missing and gather the table; `jobs` runs at once, each with its share of the cores.

    Under torchrun all processes work on one run after the other.
    """
    if seeds < 1 or jobs < 1:
        raise OrdnetError(f"--seeds and --jobs are at least 1, got {seeds} and {jobs}")
    if jobs > 1 and "WORLD_SIZE" in os.environ:
        raise OrdnetError("--jobs starts processes of its own: use it without torchrun, or torchrun without it")
    cells = cells_of(table)
    base = override(base_settings(data, recipe), list(changes))
    split = split or base.data.val_split
    classes = open_dataset(base.data.name, split).classes  # a wrong split is a mistake to hear of before training
    planned = [
        Job(f"{cell.label}, seed {seed}", cell.settings(base, seed), out / cell.run / f"seed-{seed}")
        # seed by seed: the whole table is there early, if only with one seed
        for seed in range(seeds)
        for cell in cells
    ]
    for job in planned[: len(cells)]:
        build_from(job.settings.model, len(classes))  # settings that cannot be built are refused before the first run
    train_jobs(planned, jobs)
    rows = [_row(cell, planned[place :: len(cells)], split, len(classes)) for place, cell in enumerate(cells)]
    return Table(table, base.data.name, split, base.training.epochs, seeds, rows)


def _row(cell: Cell, jobs: list[Job], split: str, classes: int) -> Row:
    settings = jobs[0].settings
    crop = settings.training.crop
    model = settings.model.model_copy(update={"weights": None})
    cost = {"gflops": gflops(build_from(model, classes), 1, 3, crop, crop)}
    if model.variant != "dilated-fcn":
        literal = build_from(model.model_copy(update={"form": "literal"}), classes)
        cost["gflops_literal"] = gflops(literal, 1, 3, crop, crop)
    else:
        cost["gflops_literal"] = cost["gflops"]
    return Row(cell.name, cell.label, [job.figures(split) for job in jobs], cost)
