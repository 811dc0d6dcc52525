"""How much memory does a large map take? Peak memory and CPU time of `ordnet predict` on a generated GeoTIFF.

    python scripts/map_check.py MODEL --width 12000 --height 12000 --ways windows,whole

`whole` parses the same pixels as a plain TIFF that is read at once, at its own size; then the labels are compared.
"""

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

from ordnet.data.raster import Raster, open_file


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("--width", type=int, default=12_000)
    words.add_argument("--height", type=int, default=12_000)
    words.add_argument("--strips", action="store_true", help="the file in strips of one row instead of tiles")
    words.add_argument("--ways", default="windows", help="windows, whole, or both with a comma")
    words.add_argument("--folder", type=Path, help="where files are kept, and taken from; a temporary one without it")
    words.add_argument("--save", default="labels")
    words.add_argument("--long-side", default="own")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for way, name in (("windows", "map"), ("whole", "plain")):
            source = folder / f"{name}.tif"
            if way in given.ways.split(","):
                if not source.exists():
                    generate(source, given.width, given.height, given.strips, georeferenced=way == "windows")
                with Raster(source) as file:
                    size = f"{file.shape[1]:,} x {file.shape[0]:,} px, {source.stat().st_size / 1e6:,.0f} MB"
                predict(given, folder, source, f"{way}, {size}")
        windows, whole = folder / "out/map.labels.tif", folder / "out/plain.labels.png"
        if windows.exists() and whole.exists():
            with Raster(windows) as labels:
                print(f"{np.mean(labels.file.read(1) == read_plain(whole)):.5%} of the labels are the same", flush=True)


def generate(path: Path, width: int, height: int, strips: bool, georeferenced: bool = True) -> None:
    """Coloured patches of 4 to 64 px with a little noise, never held whole."""
    from rasterio.transform import from_origin
    from rasterio.windows import Window

    rng = np.random.default_rng(0)
    side = 2048
    tile = sum(np.kron(rng.random((3, side // s, side // s)), np.ones((1, s, s))) for s in (4, 16, 64)) * 80
    tile = (tile + rng.integers(0, 4, tile.shape)).astype(np.uint8)
    stored = {} if strips else {"tiled": True, "blockxsize": 512, "blockysize": 512}
    place = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_400_000, 0.2, 0.2)} if georeferenced else {}
    profile = {"driver": "GTiff", "width": width, "height": height, "count": 3, "dtype": "uint8", "interleave": "pixel"}
    with open_file(path, "w", **profile, compress="lzw", bigtiff="if_safer", **stored, **place) as file:
        for top in range(0, height, side):
            rows = min(side, height - top)
            for left in range(0, width, width if strips else side):
                columns = width if strips else min(side, width - left)
                part = np.tile(tile, (1, 1, -(-columns // side)))[:, :rows, :columns]
                # brighter from top to bottom and darker from left to right, so that no two places are the same
                slope = (60 * (top / height) - 60 * ((left + np.arange(columns)) / width)).astype(np.int16)
                file.write(np.clip(part + slope, 0, 255).astype(np.uint8), window=Window(left, top, columns, rows))


def predict(given: argparse.Namespace, folder: Path, source: Path, what: str) -> None:
    environment = {**os.environ, "ORDNET_MAX_PIXELS": "10000000000"}
    command = [
        *(sys.executable, "-m", "ordnet", "predict", given.model, str(source), "--out", str(folder / "out")),
        *("--force", "--save", given.save, "--long-side", given.long_side),
    ]
    pid = os.spawnve(os.P_NOWAIT, sys.executable, command, environment)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    report(what, usage)


def report(what: str, usage: resource.struct_rusage) -> None:
    seconds = usage.ru_utime + usage.ru_stime
    print(f"{what}: peak memory {usage.ru_maxrss * 1024 / 1e9:.2f} GB, {seconds:,.0f} s of CPU time", flush=True)


def read_plain(path: Path) -> np.ndarray:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    return np.asarray(Image.open(path))


if __name__ == "__main__":
    main()
