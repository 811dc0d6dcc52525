"""From generated scenes to numbers, cell by cell: train with and without context, evaluate, load, parse, compare.

The cells (`# %%`) can be run one by one in an editor that knows them; as a script, with the sizes it uses unless told:

    python examples/train_and_evaluate.py --epochs 4 --limit 200 --out runs/example
"""

# %% How long and how large
import argparse
from pathlib import Path

import ordnet
from ordnet.data.catalogue import open_dataset

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--epochs", type=int, default=4)
arguments.add_argument("--limit", type=int, default=200, help="training scenes per epoch")
arguments.add_argument("--data", default="scenes", help="scenes, or folder:PATH for your own")
arguments.add_argument("--out", type=Path, default=Path("runs/example"))
given, _ = arguments.parse_known_args()  # a notebook has words of its own on its command line

# %% Train the same network twice: once as it is, once with the omni-range block
changes = {"training.epochs": given.epochs, "data.limit": given.limit}
runs = {
    variant: ordnet.train(
        "scenes-tiny", given.data, given.out / variant, {**changes, "model.variant": variant}, force=True
    )
    for variant in ("dilated-fcn", "ordnet")
}

# %% Evaluate both checkpoints
figures = {variant: ordnet.evaluate(run.best, given.data).figures() for variant, run in runs.items()}
for variant, found in figures.items():
    print(f"{variant}: mIoU {found['miou']:.3f}, pixel accuracy {found['pixel_accuracy']:.3f} ({found['protocol']})")

# %% Which classes gained by context?
before, after = (figures[variant]["per_class_iou"] for variant in ("dilated-fcn", "ordnet"))
for name in sorted(after, key=lambda name: (before[name] or 0) - (after[name] or 0)):
    print(f"{name:>20}: {before[name] or 0:.3f} → {after[name] or 0:.3f}")

# %% Parse one picture, and look at it
parser = ordnet.load(runs["ordnet"].best)
parse = parser(open_dataset(given.data, "val").image(0))
for name, share in list(parse.areas().items())[:3]:
    print(f"{name}: {share:.0%} of the picture")
parse.beside().save(given.out / "parse.png")
print(f"{given.out / 'parse.png'} shows it; {given.out / 'ordnet' / 'report.html'} has the whole run")
