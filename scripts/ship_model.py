"""Make a checkpoint into a model that comes with the package: float16, scored as it will be loaded, with usual colours.

    python scripts/ship_model.py runs/outdoor/last.safetensors outdoor --data folder:stanford_background \
        --called "Stanford Background" --recipe outdoor --about "Outdoor scenes, 8 classes. …"
"""

import argparse
import tempfile
from pathlib import Path

import ordnet
from ordnet.data.labels import class_colours
from ordnet.model import checkpoint
from ordnet.training.prepare import ABOUT


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("checkpoint", type=Path)
    words.add_argument("name")
    words.add_argument("--data", required=True, help="where it is scored, protocol whole")
    words.add_argument("--split", default="val")
    words.add_argument("--called", required=True, help="the data set's name, as people know it")
    words.add_argument("--recipe", required=True)
    words.add_argument("--about", required=True, help="one or two sentences")
    given = words.parse_args()

    found = checkpoint.load(given.checkpoint)
    colours = class_colours(found.classes)
    sizes = {
        key: found.about[key] for key in ("crop", "base_size", "long_side", "least_long_side") if key in found.about
    }
    with tempfile.TemporaryDirectory() as folder:
        rounded = Path(folder) / "half.safetensors"
        checkpoint.save(rounded, found.net, found.classes, colours, sizes, half=True)
        figures = ordnet.evaluate(rounded, given.data, given.split).figures()
        about = {key: value for key, value in {**found.about, **figures}.items() if key in ABOUT}
        about |= {"data": given.called, "name": given.name, "recipe": given.recipe, "about": given.about, **sizes}
        net = checkpoint.load(rounded).net
    out = Path(ordnet.__file__).parent / "models" / f"{given.name}.safetensors"
    checkpoint.save(out, net, found.classes, colours, about, half=True)
    out.chmod(0o644)
    scores = f"pixel accuracy {figures['pixel_accuracy']:.4f}, mIoU {figures['miou']:.4f}"
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {scores} ({given.called} {given.split}, protocol whole)")


if __name__ == "__main__":
    main()
