"""The libraries behind the extra `export`, and how ONNX Runtime is set up."""

from typing import Any

import torch

from ordnet.errors import OrdnetError


def library(name: str) -> Any:
    """onnx, onnxscript or onnxruntime; a plain error where the extra is not installed."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise OrdnetError(f"ONNX needs the extra `export`: pip install 'ordnet[export]' ({error})") from None


def session(model: bytes) -> Any:
    """An InferenceSession on the CPU, with as many threads as torch has. Threads may share it."""
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors; warnings are about its own optimisations
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
