"""Evaluating a checkpoint file, alone or with several processes that share the pictures."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed

from ordnet.data.catalogue import open_dataset
from ordnet.evaluation.evaluate import Evaluation, refuse_other_classes
from ordnet.evaluation.evaluate import evaluate as evaluate_network
from ordnet.inference import protocols
from ordnet.inference.parser import find
from ordnet.model import checkpoint


def evaluate(
    model: str | Path,
    data: str,
    split: str = "val",
    protocol: str = "whole",
    *,
    skip_broken: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation:
    """Scores of a checkpoint on a split; under torchrun every process gets the whole result.

    `progress` hears how many pictures of this process's share are done, and how many there are.
    """
    protocols.protocol(protocol)  # a wrong name is refused before anything is read
    loaded = checkpoint.load(find(model))
    dataset = open_dataset(data, split)
    refuse_other_classes(loaded.classes, dataset.classes.names)
    started = _join_processes()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None
    try:
        share = math.ceil(len(dataset.ids) / (distributed.get_world_size() if started else 1))
        return evaluate_network(
            loaded.net.to(device), dataset, protocols.protocol_of(protocol, loaded.about),
            device=device, progress=lambda done: progress(done, share), skip_broken=skip_broken,
        )  # fmt: skip
    finally:
        if started:
            distributed.destroy_process_group()


def _join_processes() -> bool:
    """Under torchrun, meet the other processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or distributed.is_initialized():
        return False
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return True
