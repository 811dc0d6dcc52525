"""The paper's runs by name, and recipes for users' own pictures. A variant is its parent with some fields changed.

Each recipe says what it needs, what it costs and what it scores; "not measured" where nobody has run it here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ordnet.config import DataConfig, EvaluationConfig, ModelConfig, Settings, TrainingConfig, read
from ordnet.errors import OrdnetError
from ordnet.paper import (
    ABLATIONS,
    ADE20K_TEST,
    ADE20K_VAL,
    COCO_STUFF,
    ORDNET_R101,
    PASCAL_CONTEXT,
    VOC,
    ablation,
    score,
)

NOT_MEASURED = "not measured"
FOUR_GPUS = "not measured; the paper used 4 GPUs"


@dataclass(frozen=True)
class Recipe:
    name: str
    about: str
    settings: Settings
    data: str
    """As after --data."""
    cost: str = FOUR_GPUS
    paper: str = "–"
    """The paper's score, in its own protocol."""
    ours: str = NOT_MEASURED
    init: str = ""
    """The recipe whose checkpoint this one starts from."""
    pictures: int = 0
    """Pictures in a benchmark's training split; 0 for other data."""
    classes: int = 0

    @property
    def command(self) -> str:
        """The command that trains it; a later stage starts from the one before."""
        start = f" --init runs/{self.init}/last.safetensors" if self.init else ""
        return f"ordnet train {self.name} --data {self.data}{start}"


def changed(recipe: Recipe, name: str, about: str, paper: str = "–", **sections: dict[str, Any]) -> Recipe:
    """The recipe with other values in some fields of its settings."""
    updated = {
        section: getattr(recipe.settings, section).model_copy(update=values) for section, values in sections.items()
    }
    return replace(recipe, name=name, about=about, paper=paper, settings=recipe.settings.model_copy(update=updated))


# ---- PASCAL-Context -------------------------------------------------------------------------------------------


def pascal_context_r50() -> Recipe:
    """The ablations' setting: ResNet-50, 50 epochs, cross-entropy, evaluated at a single scale on 59 classes."""
    return Recipe(
        "pcontext-r50-ordnet",
        "ORDNet, ResNet-50, the ablations' setting",
        Settings(
            data=DataConfig(name="pascal-context", base_size=520),
            model=ModelConfig(variant="ordnet", backbone="resnet50s", weights="imagenet"),
            training=TrainingConfig(epochs=50, batch_size=16, crop=480, rate=0.001, lovasz=0.0),
        ),
        "pascal-context:PATH",
        paper=ablation("branches", "ordnet"),
        pictures=4998,
        classes=59,
    )


def pascal_context_ablations() -> list[Recipe]:
    base = pascal_context_r50()
    recipes = [
        changed(
            base, f"pcontext-r50-{variant}", f"{variant}, ResNet-50", ablation("branches", variant),
            model={"variant": variant},
        )
        for variant in ABLATIONS["branches"] if variant != "ordnet"
    ]  # fmt: skip
    for p in (1, 2, 4):
        about = f"the middle range alone, {p}x{p} patches"
        paper = ablation("patches", f"p{p}")
        recipes.append(changed(base, f"pcontext-r50-mr-{p}", about, paper, model={"variant": "mr", "patches": p}))
    recipes.append(
        changed(
            base, "pcontext-r50-mr-4-crop640", "the middle range alone, 4x4 patches, larger crop",
            ablation("patches", "p4-large"), model={"variant": "mr", "patches": 4}, training={"crop": 640},
        )
    )  # fmt: skip
    for cell in ("in-softmax", "in-sigmoid", "out-softmax"):
        gate, norm = cell.split("-")
        setting = {"variant": "basic-sa-rlr", "gate": gate, "gate_norm": norm}
        about = f"Basic SA + RLR, attention-{gate}, {norm}"
        recipes.append(changed(base, f"pcontext-r50-gate-{cell}", about, ablation("gate", cell), model=setting))
    for fusion in ("sum", "scale", "channel"):
        about, paper = f"ORDNet, {fusion} fusion", ablation("fusion", fusion)
        recipes.append(changed(base, f"pcontext-r50-fusion-{fusion}", about, paper, model={"fusion": fusion}))
    return [base, *recipes]


def pascal_context_r101_ablation() -> Recipe:
    return changed(
        pascal_context_r50(), "pcontext-r101-50-epochs", "ORDNet, ResNet-101, the ablations' setting",
        f"{score(ORDNET_R101)} (59 classes)", model={"backbone": "resnet101s"},
    )  # fmt: skip


def full(recipe: Recipe, name: str, about: str, paper: str, **sections: dict[str, Any]) -> Recipe:
    """For comparison with other methods: ResNet-101 and both losses.

    The paper's score is that of `ordnet evaluate --protocol encnet`; while training, `whole` is used every ten epochs.
    """
    training = {"lovasz": 1.0, **sections.pop("training", {})}
    base = changed(recipe, name, about, paper, model={"backbone": "resnet101s"}, training=training, **sections)
    evaluation = EvaluationConfig(every=10)
    return replace(base, settings=base.settings.model_copy(update={"evaluation": evaluation}))


def pascal_context_r101() -> Recipe:
    return full(
        pascal_context_r50(), "pcontext-r101", "ORDNet, ResNet-101, for comparison with other methods",
        f"{PASCAL_CONTEXT.of('pcontext-r101')} (60 classes, multi-scale)", training={"epochs": 80},
    )  # fmt: skip


# ---- the other benchmarks -------------------------------------------------------------------------------------


def coco_stuff_r101() -> Recipe:
    recipe = full(
        pascal_context_r50(), "coco-stuff-r101", "ORDNet, ResNet-101, 171 classes",
        f"{COCO_STUFF.of('coco-stuff-r101')} (multi-scale)",
        data={"name": "coco-stuff", "base_size": 560}, training={"epochs": 80, "crop": 520},
    )  # fmt: skip
    return replace(recipe, data="coco-stuff:PATH", pictures=9000, classes=171)


def ade20k_r101() -> Recipe:
    recipe = full(
        pascal_context_r50(), "ade20k-r101", "ORDNet, ResNet-101, 150 classes",
        f"{ADE20K_VAL.of('ade20k-r101')} (val, multi-scale); {ADE20K_TEST.of('ade20k-r101')} (test)",
        data={"name": "ade20k", "base_size": 640}, training={"epochs": 120, "crop": 576, "rate": 0.004},
    )  # fmt: skip
    return replace(recipe, data="ade20k:PATH", pictures=20210, classes=150)


def ade20k_r101_trainval() -> Recipe:
    recipe = changed(
        ade20k_r101(), "ade20k-r101-trainval", "20 more epochs on train + val (val is no test here)",
        f"{ADE20K_TEST.of('ade20k-r101-trainval')} (test)",
        data={"split": "trainval"}, training={"epochs": 20, "rate": 1e-4},
    )  # fmt: skip
    return replace(recipe, init="ade20k-r101", pictures=22210)


def voc_r101() -> Recipe:
    recipe = full(
        pascal_context_r50(), "voc-r101", "ResNet-101, augmented train + val (val is no test here)", "first stage",
        data={"name": "voc", "split": "trainvalaug"}, training={"epochs": 60},
    )  # fmt: skip
    return replace(recipe, data="voc:PATH", pictures=12031, classes=21)


def voc_r101_finetune() -> Recipe:
    recipe = changed(
        voc_r101(), "voc-r101-finetune", "20 more epochs on the original train set",
        f"{VOC.of('voc-r101-finetune')} (test, multi-scale)",
        data={"split": "train"}, training={"epochs": 20, "rate": 1e-4},
    )  # fmt: skip
    return replace(recipe, init="voc-r101", pictures=1464)


def cityscapes_r101() -> Recipe:
    """Not a data set of the paper: its network with the customary crops of the whole 2048 x 1024 pictures."""
    recipe = full(
        pascal_context_r50(), "cityscapes-r101", "Cityscapes, 19 classes, ORDNet, ResNet-101", "–",
        data={"name": "cityscapes", "base_size": None},
        training={"epochs": 180, "crop": 768, "batch_size": 8, "rate": 0.01},
    )  # fmt: skip
    return replace(recipe, data="cityscapes:PATH", cost=NOT_MEASURED, pictures=2975, classes=19)


# ---- for users' own pictures, on one CPU or GPU ---------------------------------------------------------------


def scenes_tiny() -> Recipe:
    """Generated scenes whose classes need context of a known range; shows in minutes what each branch is for."""
    return Recipe(
        "scenes-tiny",
        "a tiny network on generated scenes; no download",
        Settings(
            data=DataConfig(name="scenes", scale=(1.0, 1.0)),
            model=ModelConfig(variant="ordnet", backbone="tiny"),
            # AdamW with small batches reaches in 2 epochs what SGD reaches in 6
            training=TrainingConfig(
                epochs=2, batch_size=8, crop=128, optimizer="adamw", rate=0.006, head_rate=1.0, lovasz=0.0
            ),
        ),
        "scenes",
        cost="2 minutes on two cores",
        ours="mIoU by range: short 0.914, middle 0.859, long 0.977 (test, whole, mean of 3 seeds)",
    )


def folder_default() -> Recipe:
    """A start for users' own pictures: a light backbone that trains on a laptop, and scores at a quarter of their size.

    The backbone is not dilated: the fine decoder brings detail back, and a step costs less. The block's settings are
    those that keep its gate open behind pretrained features; it learns slowly, because nothing normalises what it
    adds, and that would outgrow its input (docs/experiments.md).
    """
    return Recipe(
        "folder-default",
        "your own labelled pictures: start here; MobileNetV2, fine detail",
        Settings(
            data=DataConfig(name="folder:PATH", jitter=0.4),
            model=ModelConfig(
                backbone="mobilenet_v2_full", weights="imagenet", output_stride=32, neck=256, decoder="dense",
                auxiliary=True, align_corners=False, key_channels=64, value_channels=128,
                gate_logits="standard", logit_scale="root", start="identity",
            ),
            training=TrainingConfig(
                epochs=30, batch_size=8, least_steps=20, crop=256, optimizer="adamw", rate=0.0005, rate_steps=700,
                head_rate=8.0, block_rate=0.1, weight_decay=0.05, loss_at="sample", class_weights="auto",
                class_weights_fade=0.7, freeze_stages=1,
            ),
        ),
        "folder:PATH",
        cost="10 minutes of CPU time for 1,277 steps on 572 pictures of 320x240",
        ours="0.744 mIoU, 0.878 pixAcc after those (Stanford Background val, whole, mean of 3 seeds)",
    )  # fmt: skip


def folder_plain() -> Recipe:
    """The paper's network with a light backbone, as it was before the fine decoder: the earlier studies' setting."""
    return Recipe(
        "folder-plain",
        "your own labelled pictures, MobileNetV2, the paper's block and head",
        Settings(
            data=DataConfig(name="folder:PATH"),
            model=ModelConfig(
                backbone="mobilenet_v2", weights="imagenet", output_stride=16, key_channels=64, value_channels=128
            ),
            training=TrainingConfig(epochs=30, batch_size=8, crop=224, rate=0.01),
        ),
        "folder:PATH",
        cost="about a minute an epoch for 600 pictures of 320x240 on two cores",
        ours="depends on your pictures",
    )


def stanford_mobilenet() -> Recipe:
    about = "Stanford Background, 8 classes, MobileNetV2"
    recipe = changed(folder_plain(), "stanford-mobilenet", about, training={"epochs": 15})
    return replace(recipe, ours="0.7052 mIoU, 0.8513 pixAcc (val, whole)", cost="16 minutes on two cores")


def camvid_mobilenet() -> Recipe:
    about = "CamVid, 11 classes, MobileNetV2"
    recipe = changed(folder_plain(), "camvid-mobilenet", about, training={"epochs": 60, "crop": 352})
    return replace(recipe, ours=NOT_MEASURED, data="camvid:PATH", cost=NOT_MEASURED)


def _earlier() -> Recipe:
    """`folder-default` as it was when the models that come along were trained, with averaged weights."""
    training = {"ema": 0.998, "rate_steps": 0, "weight_decay": 0.01}
    return changed(folder_default(), "", "", data={"jitter": 0.3}, model={"auxiliary": False}, training=training)


_FASTER = {"rate": 0.001, "head_rate": 4.0, "freeze_stages": 0}
"""What it said of rates when `outdoor` and `street` were trained."""


def outdoor() -> Recipe:
    """The shipped model of that name."""
    recipe = changed(
        _earlier(), "outdoor", "the model that comes along: Stanford Background, 8 classes, averaged weights",
        model={"decoder": "fine"}, training={**_FASTER, "epochs": 60, "class_weights_fade": 0.0},
    )  # fmt: skip
    return replace(recipe, ours="0.7435 mIoU, 0.8788 pixAcc (val, whole, as float16)", cost="70 minutes on one core")


def street() -> Recipe:
    """The shipped model of that name, its last weights: val is part of training here, and CamVid's test is the test."""
    recipe = changed(
        _earlier(), "street", "the model that comes along: CamVid's train + val, 11 classes, averaged weights",
        data={"jitter": 0.4, "split": "trainval", "scale": (0.8, 2.5)}, training={**_FASTER, "epochs": 44, "crop": 352},
    )  # fmt: skip
    scores = "0.6714 mIoU, 0.9108 pixAcc (test, whole, as float16)"
    return replace(recipe, ours=scores, data="camvid:PATH", cost="80 minutes on one core")


def animals() -> Recipe:
    """The shipped model of that name. A finer map for the block: things rather than scenes."""
    about = "the model that comes along: five animals and people of PASCAL VOC"
    recipe = changed(_earlier(), "animals", about, model={"block_stride": 16}, training={"epochs": 30})
    return replace(recipe, ours="0.7271 mIoU, 0.9344 pixAcc (val, whole, float16)", cost="an hour on one core")


def cityscapes_mobilenet() -> Recipe:
    recipe = changed(
        folder_default(), "cityscapes-mobilenet", "Cityscapes, 19 classes, MobileNetV2",
        training={"epochs": 120, "crop": 768, "ema": 0.998},
    )  # fmt: skip
    return replace(recipe, ours=NOT_MEASURED, data="cityscapes:PATH")


SINGLE: list[Callable[[], Recipe]] = [
    scenes_tiny, folder_default, folder_plain, stanford_mobilenet, camvid_mobilenet, outdoor, street, animals,
    pascal_context_r101_ablation, pascal_context_r101, coco_stuff_r101, ade20k_r101, ade20k_r101_trainval,
    voc_r101, voc_r101_finetune, cityscapes_r101, cityscapes_mobilenet,
]  # fmt: skip


def recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    return {recipe.name: recipe for recipe in [*(make() for make in SINGLE), *pascal_context_ablations()]}


def stages(name: str) -> list[Recipe]:
    """The runs that lead to a recipe's checkpoint, first to last."""
    recipe = recipes()[name]
    return [*(stages(recipe.init) if recipe.init else []), recipe]


def settings_of(recipe_or_file: str) -> Settings:
    """The settings of a recipe by its name, or of a settings file."""
    if recipe_or_file.endswith((".yaml", ".yml")):
        return read(Path(recipe_or_file))
    return recipe_of(recipe_or_file).settings


def recipe_of(name: str) -> Recipe:
    known = recipes()
    if name not in known:
        close = get_close_matches(name, known, cutoff=0.5)
        hint = f", perhaps {' or '.join(close)}" if close else " (a settings file ends in .yaml)"
        raise OrdnetError(f"there is no recipe {name!r}{hint}; `ordnet recipes` lists all {len(known)}")
    return known[name]
