"""What may stand where a model is asked for → its file: a shipped name, a file, or an address on the hub."""

from importlib.resources import files
from pathlib import Path

from ordnet.errors import OrdnetError
from ordnet.model import hub


def find(name_or_path: str | Path) -> Path:
    """The file of a shipped model's name or of hf:user/name[/file], fetched if need be, or the file itself."""
    shipped = shipped_models()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    if hub.is_address(name_or_path):
        return hub.locate(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise OrdnetError(f"{path} is a folder; give a checkpoint file, such as {path / 'best.safetensors'}")
    names = f"shipped models are {', '.join(shipped)}" if shipped else "there are no shipped models yet"
    raise OrdnetError(f"no model {str(name_or_path)!r}: there is no such checkpoint file, and {names}")


def shipped_models() -> dict[str, Path]:
    """Name → checkpoint file of the models that come with the package."""
    folder = Path(str(files("ordnet"))) / "models"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
