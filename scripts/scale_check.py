"""Does a model parse the same pictures as well when they are larger? Pixel accuracy over the long side.

    python scripts/scale_check.py outdoor --data folder:stanford_background --long-sides 320,640,1280,2560,6000

Pictures are enlarged with a bicubic filter, labels by repeating pixels; each is parsed as `ordnet predict` would.
"""

import argparse

import numpy as np
from PIL import Image

import ordnet
from ordnet.data.catalogue import open_dataset
from ordnet.evaluation.confusion import Confusion


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("--data", required=True)
    words.add_argument("--split", default="val")
    words.add_argument("--long-sides", default="320,640,1280,2560,6000")
    words.add_argument("--limit", type=int, help="this many pictures, evenly spread; all without it")
    words.add_argument("--own", action="store_true", help="at every picture's own scale, to see the difference")
    given = words.parse_args()
    parser = ordnet.load(given.model, long_side="own" if given.own else None)
    dataset = open_dataset(given.data, given.split)
    step = max(1, len(dataset.ids) // given.limit) if given.limit else 1
    for long_side in map(int, given.long_sides.split(",")):
        confusion = Confusion(len(dataset.classes))
        chosen = range(0, len(dataset.ids), step)
        for index in chosen:
            image, label = dataset.image(index), dataset.label(index)
            factor = long_side / max(image.size)
            size = (round(image.width * factor), round(image.height * factor))
            enlarged = image.resize(size, Image.Resampling.BICUBIC)
            truth = np.asarray(Image.fromarray(label).resize(size, Image.Resampling.NEAREST))
            confusion.add(truth, parser(enlarged).labels)
        scores = f"pixel accuracy {confusion.pixel_accuracy():.4f}, mIoU {confusion.miou():.4f}"
        print(f"long side {long_side:5}: {scores} ({len(chosen)} pictures)", flush=True)


if __name__ == "__main__":
    main()
