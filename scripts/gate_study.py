"""What keeps the block's gate open, behind a backbone that stays as it is.

    python -m scripts.gate_study --data folder:stanford_background --backbone mobilenet_v2 --neck 128 --out runs/gate
    python -m scripts.gate_study --data folder:stanford_background --backbone resnet50 --neck 128 --crop 128 \
        --epochs 1 --settings none paper recommended --steps 60 --out runs/gate-resnet50

The features of crops are computed once. Then neck, block and head are trained on them, for every setting and seed. The
table has the gate's mean ± spread over positions (the vitals of training, on crops of val), the gradient that reaches
the gate's queries, and mIoU on one crop of each val picture, also with each map's gate replaced by its mean: a gate
that selects anything useful must lose by that. In one seed all settings start with the same neck and head, and see the
same crops and the same dropout.

A folder given with --out keeps the features and every finished cell: the same command goes on where it was ended.
"""

import copy
import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ordnet.config import DataConfig, TrainingConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.labels import IGNORE
from ordnet.data.order import order
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion
from ordnet.files import write_text
from ordnet.model.network import Network
from ordnet.model.parts import Block
from ordnet.training.monitor import watch
from ordnet.training.step import make_optimizer, set_rate
from scripts.frozen import Crops, crops, network, scores, start

WIDTHS = {"key_channels": 64, "value_channels": 128}  # as in the recipes with MobileNetV2
SCALES = (0.8, 1.4)
LOOKED_AT = 32  # crops of val that the gate is measured on
LAST = 20  # steps at the end over which the gradient is averaged


@dataclass(frozen=True)
class Way:
    """One row of the table."""

    title: str
    block: dict[str, str] | None
    """What the block sets; None stands for no block."""
    qk_rate: float = 1.0


WAYS = {
    "none": Way("no block", None),
    "paper": Way("paper", {}),
    "identity": Way("identity start", {"start": "identity"}),
    "root": Way("root scale", {"logit_scale": "root"}),
    "identity-root": Way("identity start, root scale", {"start": "identity", "logit_scale": "root"}),
    "slow": Way("q and k at 0.1 of the rate", {}, qk_rate=0.1),
    "standard": Way("standard gate", {"gate_logits": "standard"}),
    "recommended": Way(
        "recommended: standard gate, identity start, root scale",
        {"gate_logits": "standard", "start": "identity", "logit_scale": "root"},
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder:PATH or another data set with the splits train and val")
    parser.add_argument("--backbone", default="mobilenet_v2", help="its features stay as they are")
    parser.add_argument("--weights", default="imagenet", help="as model.weights: imagenet, a file, none")
    parser.add_argument("--stride", type=int, default=16, help="output stride; 0 for the backbone's own")
    parser.add_argument("--neck", type=int, default=0, help="channels of the neck; 0 for none")
    parser.add_argument("--variant", default="basic-sa-rlr", help="the long range alone, or ordnet for both branches")
    parser.add_argument("--crop", type=int, default=192, help="side of the crops in pixels")
    parser.add_argument("--epochs", type=int, default=2, help="crops per training picture")
    parser.add_argument("--steps", type=int, default=80, help="training steps of a cell")
    parser.add_argument("--early", type=int, default=20, help="steps after which the gate is first looked at")
    parser.add_argument("--batch", type=int, default=8, help="crops per step")
    parser.add_argument("--rate", type=float, default=0.004, help="AdamW's rate at batch 16, scaled by batch/16")
    parser.add_argument("--settings", nargs="+", choices=WAYS, default=list(WAYS), help="rows of the table")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="a cell for each of them")
    parser.add_argument("--out", type=Path, help="keeps features, cells, table.md and table.json; nothing without it")
    study = parser.parse_args(words)
    with nullcontext(study.out) if study.out else tempfile.TemporaryDirectory() as folder:
        try:
            print(run(study, Path(folder)))
        except OrdnetError as error:
            raise SystemExit(f"gate_study: {error}") from None


def run(study: Namespace, folder: Path) -> str:
    """Train the cells that the folder lacks; write and return the table."""
    if not 0 < study.early <= study.steps:
        raise OrdnetError(f"--early {study.early}: expected 1…{study.steps}, the number of steps")
    common = {name: value for name, value in vars(study).items() if name not in ("settings", "seeds", "out")}
    kept, mine = folder / "study.json", json.dumps(common, indent=1) + "\n"
    if kept.exists() and kept.read_text(encoding="utf-8") != mine:
        raise OrdnetError(f"{folder} holds a study with other settings ({kept.name}); choose another --out")
    classes = len(open_dataset(study.data, "val").classes)
    write_text(kept, mine)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in study.settings}
    for name, seed in product(study.settings, study.seeds):
        path = folder / "cells" / f"{name}-{seed}.json"
        if not path.exists():
            print(f"{WAYS[name].title}, seed {seed}", file=sys.stderr)
            train, val = (features(study, split, folder) for split in ("train", "val"))
            figures = train_cell(study, WAYS[name], seed, train, val, classes)
            write_text(path, json.dumps(figures, indent=1) + "\n")
        found[name].append(json.loads(path.read_text(encoding="utf-8")))
    write_text(folder / "table.json", json.dumps({**common, "seeds": study.seeds, "cells": found}, indent=1) + "\n")
    write_text(folder / "table.md", table(found, study.early))
    return table(found, study.early)


def features(study: Namespace, split: str, folder: Path) -> Crops:
    """The crops of a split: random ones of the training pictures, one of each val picture at its own scale."""
    dataset, training = open_dataset(study.data, split), split == "train"
    net = network(study, "dilated-fcn", len(dataset.classes), weights=study.weights)
    settings = DataConfig(workers=0, scale=SCALES if training else (1.0, 1.0), flip=training)
    return crops(net, dataset, folder / split, settings, study.crop, study.epochs if training else 1)


def train_cell(study: Namespace, way: Way, seed: int, train: Crops, val: Crops, classes: int) -> dict[str, Any]:
    net = network_of(study, way, seed, classes)
    rates = {"rate": study.rate, "head_rate": 1.0, "qk_rate": way.qk_rate}
    training = TrainingConfig(optimizer="adamw", batch_size=study.batch, **rates)
    optimizer = make_optimizer(net, training)
    count, wanted = len(train.labels), study.steps * study.batch
    picked = torch.from_numpy(np.concatenate([order(count, seed, turn) for turn in range(-(-wanted // count))]))
    looks, gradients = {"start": look(net, val)}, []
    torch.manual_seed(seed)  # the same dropout, whatever the block drew
    net.train()
    for step in range(study.steps):
        set_rate(optimizer, step, study.steps, training)
        batch = picked[step * study.batch : (step + 1) * study.batch]
        labels = train.labels[batch]
        loss = functional.cross_entropy(
            scores(net, train.features[batch], labels.shape[1:]), labels.long(), ignore_index=IGNORE
        )
        optimizer.zero_grad()
        loss.backward()
        if net.block.has_gate:
            gradients.append(float(net.block.long.attention.query.weight.grad.norm()))
        optimizer.step()
        if step + 1 == study.early:
            looks["early"] = look(net, val)
    looks["end"] = look(net, val)
    figures: dict[str, Any] = {"miou": miou(net, val), "loss": float(loss.detach()), **looks}
    if net.block.has_gate:
        figures["query_gradient"] = float(np.mean(gradients[-LAST:]))
        net.block = with_flat_gate(net.block)
        figures["miou_flat"] = miou(net, val)
    return figures


def network_of(study: Namespace, way: Way, seed: int, classes: int) -> Network:
    if way.block is None:
        return start(study, seed, classes, "dilated-fcn")
    return start(study, seed, classes, study.variant, **WIDTHS, **way.block)


@torch.no_grad()
def look(net: Network, val: Crops) -> dict[str, float]:
    """The vitals, with the batch's own statistics in the neck: the running ones are cold in the first steps."""
    neck = copy.deepcopy(net.neck).train()
    with watch(net) as vitals:
        for features in val.features[:LOOKED_AT].split(8):
            net.block(neck(features.float()))
    return vitals


def with_flat_gate(block: Block) -> Block:
    """A copy whose gate has at all positions of a map what it has there on average."""
    flat = copy.deepcopy(block)
    gate_at = flat.factored.gate_at
    flat.factored.gate_at = lambda x, *sums: gate_at(x, *sums).mean((2, 3), keepdim=True).expand(-1, -1, *x.shape[2:])
    return flat


@torch.no_grad()
def miou(net: Network, val: Crops) -> float:
    net.eval()
    confusion = Confusion(net.classes)
    for features, labels in zip(val.features.split(16), val.labels.split(16), strict=True):
        confusion.add(labels, scores(net, features, labels.shape[1:]).argmax(1))
    return confusion.miou()


def table(found: dict[str, list[dict[str, Any]]], early: int) -> str:
    """Markdown: a row per setting, its seeds side by side."""
    gates = ("gate at the start", f"gate after {early} steps", "gate at the end")
    lines = [["setting", *gates, "gradient at its queries", "mIoU", "mean", "mIoU, gate flattened"], ["---"] * 8]
    for name, cells in found.items():
        vitals, flat = ["–"] * 4, "–"
        if "miou_flat" in cells[0]:
            looks = [[c[when] for c in cells] for when in ("start", "early", "end")]
            vitals = [", ".join(f"{v['gate_mean']:.3f} ± {v['gate_spread']:.3f}" for v in look) for look in looks]
            vitals.append(", ".join(f"{c['query_gradient']:.2g}" for c in cells))
            flat = ", ".join(f"{c['miou_flat']:.3f}" for c in cells)
        scores = ", ".join(f"{c['miou']:.3f}" for c in cells)
        lines.append([WAYS[name].title, *vitals, scores, f"{np.mean([c['miou'] for c in cells]):.4f}", flat])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
