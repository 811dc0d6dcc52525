"""One of the paper's ablation tables: every row trained with several seeds, each run in its own folder.

OUT/basic-sa/seed-0/ and so on hold the runs, shared by all tables made in OUT; OUT/branches.md, .csv, .json and
.png the table. A finished run is not run again, a killed one continues.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ordnet.config import WITHOUT_BLOCK, Settings, override
from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.model.build import build_from
from ordnet.model.flops import gflops
from ordnet.study.cells import base_settings, cells_of
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
    # before the first run: settings that cannot be built, or not with this crop, are refused here
    costs = [_cost(job.settings, len(classes)) for job in planned[: len(cells)]]
    train_jobs(planned, jobs)
    rows = [
        Row(cell.name, cell.label, [job.figures(split) for job in planned[place :: len(cells)]], costs[place])
        for place, cell in enumerate(cells)
    ]
    return Table(table, base.data.name, split, base.training.epochs, seeds, rows)


def _cost(settings: Settings, classes: int) -> dict[str, float]:
    shape = (1, 3, settings.training.crop, settings.training.crop)
    cost = {"gflops": gflops(build_from(settings.model, classes), *shape)}
    cost["gflops_literal"] = cost["gflops"]
    if settings.model.variant not in WITHOUT_BLOCK:
        literal = settings.model.model_copy(update={"form": "literal", "weights": None})
        cost["gflops_literal"] = gflops(build_from(literal, classes), *shape)
    return cost
