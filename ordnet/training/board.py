"""The log's epochs for TensorBoard, through the extra `log`."""

from pathlib import Path
from typing import Any

from ordnet.errors import OrdnetError


class Board:
    """Writes every number of an epoch's record; does nothing unless it was asked for."""

    def __init__(self, folder: Path | None, epoch: int = 0) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise OrdnetError("training.tensorboard needs TensorBoard: pip install 'ordnet[log]'") from None
        # what a killed run wrote after the state that is resumed is hidden
        self._writer = SummaryWriter(folder, purge_step=epoch + 1)

    def write(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for key, value in record.items():
            inner = value if isinstance(value, dict) else {"": value}
            for name, number in inner.items():
                if isinstance(number, float):
                    self._writer.add_scalar(f"{key}/{name}".rstrip("/"), number, record["epoch"])
        self._writer.flush()
