"""The paper's ablations behind a frozen ResNet-50 at output stride 8: as near to its setting as a CPU comes.

    python -m scripts.paper_setting branches --data folder:stanford_background --out runs/paper-setting
    python -m scripts.paper_setting patches gate --data folder:stanford_background --out runs/paper-setting

The backbone's 2048 channels are computed once, for flipped and scaled crops of the training pictures and for the whole
val pictures, and kept in OUT. Then neck, block and FCN head are trained on them with cross-entropy, for every row and
seed, and tested on all of val, protocol `whole`. In one seed all rows start with the same neck and head, and see the
same crops in the same order. --neck 0 gives the block all 2048 channels, as the paper does, at ten times the cost.

OUT/cells keeps what is finished: the same command goes on where it was ended, and several may share the rows among
them (--seeds). OUT/branches.md, .csv, .json and .png hold the table.
"""

import json
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ordnet.config import OMNI_RANGE, DataConfig, TrainingConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset
from ordnet.data.labels import IGNORE
from ordnet.data.order import order
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion
from ordnet.files import write_text
from ordnet.model.network import Network
from ordnet.study.ablation import PlannedRow, rows_of
from ordnet.study.table import Table, TableRow
from ordnet.training.monitor import SAMPLES, watch
from ordnet.training.step import make_optimizer, set_rate
from scripts.frozen import Crops, crops, network, pictures, scores, start

TABLES = ("branches", "patches", "gate", "fusion")
LIVING = {"gate_logits": "standard", "start": "identity", "logit_scale": "root"}  # the block of our own recipes


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=TABLES, help="tables of the paper")
    parser.add_argument("--data", required=True, help="folder:PATH or another data set with the splits train and val")
    parser.add_argument("--out", type=Path, required=True, help="keeps features, cells and tables")
    parser.add_argument("--backbone", default="resnet50", help="its features stay as they are")
    parser.add_argument("--weights", default="imagenet", help="as model.weights: imagenet, a file, none")
    parser.add_argument("--stride", type=int, default=8, help="output stride; 0 for the backbone's own")
    parser.add_argument("--neck", type=int, default=512, help="channels that the block gets; 0 for all")
    parser.add_argument("--block", choices=("paper", "living"), default="paper", help="its gate and start")
    parser.add_argument("--crop", type=int, default=160, help="side of the crops in pixels")
    parser.add_argument("--scale", type=float, nargs=2, default=(0.5, 1.0), help="least and largest scale of a crop")
    parser.add_argument("--crops", type=int, default=3, help="crops that are kept of each training picture")
    parser.add_argument("--epochs", type=int, default=8, help="times that each training picture is seen")
    parser.add_argument("--batch", type=int, default=8, help="crops per step")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    parser.add_argument("--rate", type=float, default=0.001, help="at batch 16, scaled by batch/16")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="a cell for each row and seed")
    study = parser.parse_args(words)
    try:
        run(study)
    except OrdnetError as error:
        raise SystemExit(f"paper_setting: {error}") from None


def run(study: Namespace) -> None:
    """Train the cells that the folder lacks, then write and print the tables."""
    common = {name: value for name, value in vars(study).items() if name not in ("tables", "seeds", "out")}
    kept, mine = study.out / "study.json", json.dumps(common, indent=1) + "\n"
    if kept.exists() and kept.read_text(encoding="utf-8") != mine:
        raise OrdnetError(f"{study.out} holds a study with other settings ({kept.name}); choose another --out")
    val = open_dataset(study.data, "val")
    write_text(kept, mine)
    # the larger crop of the patches table would need features of its own
    planned = {table: [row for row in rows_of(table) if not row.larger_crop] for table in study.tables}
    for seed, row in product(study.seeds, [row for rows in planned.values() for row in rows]):
        if not cell_of(study, row, seed).exists():
            print(f"{row.label}, seed {seed}", file=sys.stderr)
            write_text(cell_of(study, row, seed), json.dumps(train_cell(study, row, seed, val), indent=1) + "\n")
    for table, rows in planned.items():
        records = [[json.loads(cell_of(study, row, seed).read_text()) for seed in study.seeds] for row in rows]
        made = [TableRow(row.name, row.label, found) for row, found in zip(rows, records, strict=True)]
        written = Table(table, study.data, "val", study.epochs, len(study.seeds), made)
        written.write(study.out)
        print(written.markdown())


def cell_of(study: Namespace, row: PlannedRow, seed: int) -> Path:
    """Rows of different tables that train the same network share a cell."""
    return study.out / "cells" / f"{row.run}-{seed}.json"


def train_cell(study: Namespace, row: PlannedRow, seed: int, val: Dataset) -> dict[str, Any]:
    train, tested = features(study, val)
    begun = time.process_time()
    net = network_of(study, row, seed, len(val.classes))
    training = TrainingConfig(
        optimizer=study.optimizer, batch_size=study.batch, rate=study.rate, head_rate=1.0 if study.neck else 10.0
    )
    optimizer = make_optimizer(net, training)
    seen = len(train.labels) // study.crops
    total = study.epochs * seen // study.batch
    turns = range(-(-study.epochs // study.crops))
    picked = torch.from_numpy(np.concatenate([order(len(train.labels), seed, turn) for turn in turns]))
    torch.manual_seed(seed)  # the same dropout, whatever the block drew
    net.train()
    for step in range(total):
        set_rate(optimizer, step, total, training)
        batch = picked[step * study.batch : (step + 1) * study.batch]
        labels = train.labels[batch]
        found = scores(net, train.features[batch], labels.shape[1:])
        loss = functional.cross_entropy(found, labels.long(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {**test(net, tested, val), "loss": float(loss.detach()), "cpu_seconds": time.process_time() - begun}


def network_of(study: Namespace, row: PlannedRow, seed: int, classes: int) -> Network:
    living = LIVING if study.block == "living" and row.model["variant"] in OMNI_RANGE else {}
    return start(study, seed, classes, **row.model, **living)


def features(study: Namespace, val: Dataset) -> tuple[Crops, list[Tensor]]:
    train = open_dataset(study.data, "train")
    net = network(study, "dilated-fcn", len(val.classes), weights=study.weights)
    settings = DataConfig(workers=0, scale=tuple(study.scale), flip=True)
    return (
        crops(net, train, study.out / "train", settings, study.crop, study.crops),
        pictures(net, val, study.out / "val.pt"),
    )


@torch.no_grad()
def test(net: Network, tested: Sequence[Tensor], val: Dataset) -> dict[str, Any]:
    """Scores on the whole val pictures, and the block's vitals on the first of them."""
    net.eval()
    confusion = Confusion(net.classes)
    for index, found in enumerate(tested):
        truth = val.label(index)
        confusion.add(truth, scores(net, found, truth.shape)[0].argmax(0))
    with watch(net) as vitals:
        for found in tested[:SAMPLES]:
            net.block(net.neck(found.float()))
    by_class = dict(zip(val.classes.names, confusion.iou().tolist(), strict=True))
    figures = {"miou": confusion.miou(), "pixel_accuracy": confusion.pixel_accuracy(), "per_class_iou": by_class}
    return {**figures, **vitals}


if __name__ == "__main__":
    main()
