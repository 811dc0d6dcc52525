"""Evaluating a checkpoint file, alone or with several processes that share the pictures."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed

from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import Evaluation, evaluate, refuse_other_classes
from ordnet.model import checkpoint

PROTOCOLS = ("whole", "multiscale", "encnet")


def evaluate_checkpoint(
    model: str | Path,
    data: str,
    split: str = "val",
    protocol: str = "whole",
    *,
    skip_broken: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation | None:
    """The result, on the first process; None on the others (under torchrun). `progress` hears done and total."""
    if protocol not in PROTOCOLS:
        raise OrdnetError(f"there is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    loaded = checkpoint.load(model)
    dataset = open_dataset(data, split)
    refuse_other_classes(loaded.classes, dataset.classes.names)
    started = _join_processes()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None
    try:
        share = math.ceil(len(dataset.ids) / (distributed.get_world_size() if started else 1))
        evaluation = evaluate(
            loaded.net.to(device), dataset, protocol,
            device=device, progress=lambda done: progress(done, share), skip_broken=skip_broken,
        )  # fmt: skip
        return evaluation if not started or distributed.get_rank() == 0 else None
    finally:
        if started:
            distributed.destroy_process_group()


def _join_processes() -> bool:
    """Under torchrun, meet the other processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or distributed.is_initialized():
        return False
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return True
