"""The folder that the documentation's commands are run in."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import save_file

from ordnet.data.catalogue import open_dataset
from ordnet.data.pictures import sample_picture
from ordnet.data.raster import open_file
from ordnet.model.build import make_backbone

PICTURES = 20


def prepare(folder: Path, environment: dict[str, str]) -> None:
    """Write street/, photos/, photo.jpg, two maps, annotations, weights, model.safetensors and its run folder."""
    for name in ("street/images", "street/labels", "photos", "labelme"):
        (folder / name).mkdir(parents=True)
    scenes = open_dataset("scenes", "train")
    for index in range(PICTURES):
        scenes.image(index).save(folder / "street" / "images" / f"{index:04}.jpg")
        Image.fromarray(np.asarray(scenes.label(index))).save(folder / "street" / "labels" / f"{index:04}.png")
    (folder / "street" / "classes.txt").write_text("\n".join(scenes.classes.names) + "\n")
    for index in range(2):
        open_dataset("scenes", "test").image(index).save(folder / "photos" / f"{index:04}.jpg")
    shutil.copy(sample_picture(), folder / "photo.jpg")
    _write_maps(folder)
    _write_annotations(folder)
    # random ones with the right names and shapes: the road is the same
    save_file(make_backbone("mobilenet_v2").state_dict(), folder / "mobilenet_v2.safetensors")
    _train(folder, environment)


def _write_maps(folder: Path) -> None:
    """A scene with a place on earth, in three bands of 8 bits and in four of 16."""
    from rasterio.transform import from_origin

    place = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_400_000, 0.2, 0.2)}
    bands = np.asarray(open_dataset("scenes", "test").image(0)).transpose(2, 0, 1)
    for name, values in (("ortho", bands), ("satellite", np.uint16(bands[[2, 1, 0, 0]]) * 12)):
        count, height, width = values.shape
        profile = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": values.dtype, **place}
        with open_file(folder / f"{name}.tif", "w", **profile) as file:
            file.write(values)


def _write_annotations(folder: Path) -> None:
    """Two polygons on two pictures, as labelme and as COCO write them."""
    corners = [[10.0, 20.0], [100.0, 20.0], [100.0, 90.0], [10.0, 90.0]]
    images, annotations = [], []
    for index in range(2):
        name = f"{index:04}.jpg"
        shutil.copy(folder / "street" / "images" / name, folder / "labelme" / name)
        shape = {"label": "house", "points": corners, "shape_type": "polygon", "group_id": None, "flags": {}}
        record = {"imagePath": name, "imageData": None, "imageHeight": 128, "imageWidth": 128, "shapes": [shape]}
        (folder / "labelme" / f"{index:04}.json").write_text(json.dumps(record))
        images.append({"id": index, "file_name": name, "height": 128, "width": 128})
        flat = [number for corner in corners for number in corner]
        annotations.append({"id": index, "image_id": index, "category_id": 1, "segmentation": [flat], "iscrowd": 0})
    whole = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "house"}]}
    (folder / "coco.json").write_text(json.dumps(whole))


def _train(folder: Path, environment: dict[str, str]) -> None:
    words = "train folder-default --data folder:street --set training.epochs=1 --set data.limit=8"
    small = "--set training.batch_size=4 --set training.crop=64 --set data.base_size=96 --set data.workers=0"
    subprocess.run(
        [sys.executable, "-m", "ordnet", *words.split(), *small.split()],
        cwd=folder, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    shutil.copy(folder / "runs" / "folder-default" / "best.safetensors", folder / "model.safetensors")
