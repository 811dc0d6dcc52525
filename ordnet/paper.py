"""The paper's figures, each written down once; recipes, ablations and benchmarks show them beside ours.

Scores are in per cent, as printed there. Imports nothing of the package.
"""

from dataclasses import dataclass

Figures = dict[str, float]

# By table and cell. PASCAL-Context test set, 59 classes, ResNet-50, 50 epochs, cross-entropy, one scale.
ABLATIONS: dict[str, dict[str, Figures]] = {
    "branches": {
        "dilated-fcn": {"miou": 45.30, "pixel_accuracy": 75.34},
        "basic-sa": {"miou": 49.45, "pixel_accuracy": 78.61},
        "basic-sa-mr": {"miou": 50.26, "pixel_accuracy": 78.95},
        "basic-sa-rlr": {"miou": 50.28, "pixel_accuracy": 78.89},
        "ordnet": {"miou": 50.67, "pixel_accuracy": 79.35},
    },
    # The middle range alone; p x p patches at crop 480, and 4 x 4 at crop 640.
    "patches": {
        "p1": {"miou": 49.45, "pixel_accuracy": 78.61, "gflops": 94.50},
        "p2": {"miou": 48.75, "pixel_accuracy": 76.83, "gflops": 62.27},
        "p4": {"miou": 46.19, "pixel_accuracy": 75.94, "gflops": 51.17},
        "p4-large": {"miou": 46.92, "pixel_accuracy": 76.08, "gflops": 78.97},
    },
    # Basic SA + RLR.
    "gate": {
        "in-softmax": {"miou": 49.80, "pixel_accuracy": 78.58},
        "in-sigmoid": {"miou": 49.97, "pixel_accuracy": 78.61},
        "out-softmax": {"miou": 50.13, "pixel_accuracy": 78.92},
        "out-sigmoid": {"miou": 50.28, "pixel_accuracy": 78.89},
    },
    # ORDNet.
    "fusion": {
        "sum": {"miou": 50.19, "pixel_accuracy": 78.94},
        "concat": {"miou": 50.67, "pixel_accuracy": 79.35},
        "scale": {"miou": 49.73, "pixel_accuracy": 78.81},
        "channel": {"miou": 49.60, "pixel_accuracy": 78.69},
    },
}

# ORDNet's row of the branches table on ResNet-101.
ORDNET_R101: Figures = {"miou": 53.03, "pixel_accuracy": 80.24}

# Inference on features of 2048x128x128, on a TITAN XP; by the names of `ordnet bench block`.
COMPUTE: dict[str, Figures] = {
    "ORDNet literal": {"gflops": 624, "peak_mb": 2192, "ms": 83},
    "InterlacedSSA": {"gflops": 386, "peak_mb": 252, "ms": 45},
    "Basic SA": {"gflops": 619, "peak_mb": 2168, "ms": 77},
    "DANet": {"gflops": 1110, "peak_mb": 2339, "ms": 121},
}

NAMES = {"miou": "mIoU", "pixel_accuracy": "pixAcc", "final_score": "final score"}


def score(figures: Figures, digits: int = 2) -> str:
    """The scores in words, such as "50.67 mIoU, 79.35 pixAcc"; costs are left out."""
    return ", ".join(f"{value:.{digits}f} {NAMES[name]}" for name, value in figures.items() if name in NAMES)


def ablation(table: str, cell: str) -> str:
    """The score of one ablation, with the classes it was measured on."""
    return f"{score(ABLATIONS[table][cell])} (59 classes)"


# ---- comparisons with other methods ---------------------------------------------------------------------------

R101, R152, R269 = "ResNet-101", "ResNet-152", "ResNet-269"


@dataclass(frozen=True)
class Row:
    """One method; `figures` in the order of the table's columns, None where the paper has a dash."""

    method: str
    backbone: str | None
    figures: tuple[float | None, ...]
    trained: str = ""
    """On what, and whether it is an ensemble; only the table of ADE20K's test set says so."""
    recipe: str = ""
    """Our recipe for the row, where it is one of ORDNet's."""


@dataclass(frozen=True)
class Results:
    title: str
    columns: tuple[str, ...]
    digits: int
    protocol: str
    """How the paper measured, and what to compare with; one line."""
    rows: tuple[Row, ...]
    server: str = ""
    """Whose server scores it; without one the labels are public and `ordnet evaluate` does."""

    def best(self) -> tuple[float, ...]:
        """The highest figure of each column."""
        columns = zip(*(row.figures for row in self.rows), strict=True)
        return tuple(max(value for value in column if value is not None) for column in columns)

    @property
    def ordnet(self) -> tuple[Row, ...]:
        """ORDNet's own rows: one, or two where it was trained on two splits."""
        return tuple(row for row in self.rows if row.recipe)

    def of(self, recipe: str) -> str:
        """The score of ORDNet's row that the recipe reproduces."""
        row = next(row for row in self.ordnet if row.recipe == recipe)
        given = {name: value for name, value in zip(self.columns, row.figures, strict=True) if value is not None}
        return score(given, self.digits)


PASCAL_CONTEXT = Results(
    "PASCAL-Context, test set (our split `val`)",
    ("miou",),
    1,
    "Paper: 80 epochs, both losses, six scales, 60 classes: compare with our miou_59_times_59_60.",
    (
        Row("FCN-8s", None, (37.8,)),
        Row("CRF-RNN", None, (39.3,)),
        Row("ParseNet", None, (40.4,)),
        Row("BoxSup", None, (40.5,)),
        Row("ConvPP-8", None, (41.0,)),
        Row("HO_CRF", None, (41.3,)),
        Row("PixelNet", None, (41.4,)),
        Row("Piecewise", None, (43.3,)),
        Row("DAG-RNN + CRF", None, (43.7,)),
        Row("VeryDeep", None, (44.5,)),
        Row("DeepLab-v2", f"{R101} + COCO", (45.7,)),
        Row("LabelBank", R101, (45.8,)),
        Row("RefineNet-101", R101, (47.1,)),
        Row("RefineNet-152", R152, (47.3,)),
        Row("PSPNet", R101, (47.8,)),
        Row("Model A2, 2 conv", None, (48.1,)),
        Row("MSCI", R152, (50.3,)),
        Row("SGR", R101, (50.8,)),
        Row("CCL", R101, (51.6,)),
        Row("EncNet", R101, (51.7,)),
        Row("SGR+", f"{R101} + COCO Stuff", (52.5,)),
        Row("DUpsampling", "Xception-71", (52.5,)),
        Row("DANet", R101, (52.6,)),
        Row("SVCNet", R101, (53.2,)),
        Row("CFNet", R101, (54.0,)),
        Row("InterlacedSSA", R101, (54.1,)),
        Row("ORDNet", R101, (54.5,), recipe="pcontext-r101"),
    ),
)

COCO_STUFF = Results(
    "COCO-Stuff 10k, test set (our split `val`)",
    ("miou",),
    1,
    "Paper: 80 epochs, both losses, six scales, 171 classes.",
    (
        Row("FCN", None, (22.7,)),
        Row("FCN-8s", None, (27.2,)),
        Row("DAG-RNN + CRF", R101, (31.2,)),
        Row("RefineNet", R152, (33.6,)),
        Row("LabelBank", R101, (34.3,)),
        Row("DeepLab-v2", R101, (34.4,)),
        Row("CCL", R101, (35.7,)),
        Row("DSSPN", R101, (36.2,)),
        Row("SGR", R101, (39.1,)),
        Row("InterlacedSSA", R101, (39.2,)),
        Row("SVCNet", R101, (39.6,)),
        Row("DANet", R101, (39.7,)),
        Row("ORDNet", R101, (40.5,), recipe="coco-stuff-r101"),
    ),
)

ADE20K_VAL = Results(
    "ADE20K, validation set",
    ("miou", "pixel_accuracy"),
    2,
    "Paper: 120 epochs, both losses, six scales, 150 classes, unlabelled pixels left out.",
    (
        Row("SegNet", None, (21.64, 71.00)),
        Row("FCN", None, (29.39, 71.32)),
        Row("DilatedNet", None, (32.31, 73.55)),
        Row("CascadeNet", None, (34.90, 74.52)),
        Row("DeepLabv2", R101, (38.97, 79.01)),
        Row("RefineNet-101", R101, (40.20, None)),
        Row("RefineNet-152", R152, (40.70, None)),
        Row("DSSPN", R101, (42.03, 81.21)),
        Row("PSPNet-101", R101, (43.29, 81.39)),
        Row("PSPNet-269", R269, (44.94, 81.69)),
        Row("Model A2, 2c", None, (43.73, 81.17)),
        Row("SGR", R101, (44.32, 81.43)),
        Row("EncNet", R101, (44.65, 81.69)),
        Row("CFNet", R101, (44.89, None)),
        Row("InterlacedSSA", R101, (45.04, None)),
        Row("ORDNet", R101, (45.39, 81.48), recipe="ade20k-r101"),
    ),
)

ADE20K_TEST = Results(
    "ADE20K, test set",
    ("final_score",),
    2,
    "Paper: the server's mean of mIoU and pixAcc; trainval: 20 more epochs with val, at rate 1e-4.",
    (
        Row("Dense Relation Network", None, (56.35,)),
        Row("DRANet101_SingleModel", R101, (56.72,), "trainval"),
        Row("Adelaide", None, (56.73,), "trainval, ensemble"),
        Row("SenseCUSceneParsing", None, (55.38,), "train"),
        Row("SenseCUSceneParsing", None, (57.21,), "trainval, ensemble"),
        Row("ORDNet", R101, (56.67,), "train", "ade20k-r101"),
        Row("ORDNet", R101, (56.86,), "trainval", "ade20k-r101-trainval"),
    ),
    "ade20k",
)

VOC = Results(
    "PASCAL VOC 2012, test set",
    ("miou",),
    1,
    "Paper: the server's score; 60 epochs on augmented train + val, 20 on the original train set at 1e-4.",
    (Row("ORDNet", R101, (83.3,), recipe="voc-r101-finetune"),),
    "voc",
)

RESULTS = (PASCAL_CONTEXT, COCO_STUFF, ADE20K_VAL, ADE20K_TEST, VOC)
