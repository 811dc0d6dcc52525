"""Label maps as COCO JSON: the packing against COCO's own library, and a way back through our own import."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ordnet.data.importers.regions import run_lengths as painted
from ordnet.data.importers.regions import unpack
from ordnet.inference.coco import coco_record, merged, packed, run_lengths

MASKS = npst.arrays(bool, st.tuples(st.integers(1, 30), st.integers(1, 30)))


@given(MASKS)
def test_run_lengths_are_those_of_cocos_library(mask):
    library = pytest.importorskip("pycocotools.mask")
    expected = library.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert packed(run_lengths(mask)) == expected["counts"].decode()
    np.testing.assert_array_equal(
        library.decode({"size": list(mask.shape), "counts": packed(run_lengths(mask)).encode()}), mask
    )


@given(MASKS)
def test_run_lengths_come_back_through_our_own_import(mask):
    label = np.zeros(mask.shape, np.uint8)
    painted(unpack(packed(run_lengths(mask))), mask.shape, *mask.shape).paint(label, 1)
    np.testing.assert_array_equal(label.astype(bool), mask)


def test_a_record_has_every_pixel_once():
    labels = np.random.default_rng(0).integers(0, 4, (20, 30), dtype=np.uint8)
    labels[0, 0] = 255
    record = coco_record(labels, ("sky", "tree", "road", "car", "never"), "a.jpg")
    assert record["images"] == [{"id": 1, "file_name": "a.jpg", "width": 30, "height": 20}]
    assert [each["category_id"] for each in record["annotations"]] == [1, 2, 3, 4]
    again = np.full(labels.shape, 255, np.uint8)
    for each in record["annotations"]:
        painted(unpack(each["segmentation"]["counts"]), (20, 30), 20, 30).paint(again, each["category_id"] - 1)
        x, y, width, height = each["bbox"]
        rows, columns = np.nonzero(labels == each["category_id"] - 1)
        assert (x, y, width, height) == (columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1)
        assert each["area"] == len(rows)
    np.testing.assert_array_equal(again, labels)


def test_records_are_merged_with_numbers_of_their_own(tmp_path):
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.coco.json")
        labels = np.full((4, 5), number % 2, np.uint8)
        files[-1].write_text(json.dumps(coco_record(labels, ("a", "b"), f"{number}.jpg")))
    whole = merged(files)
    assert [each["id"] for each in whole["images"]] == [1, 2, 3]
    assert [(each["id"], each["image_id"], each["category_id"]) for each in whole["annotations"]] == [
        (1, 1, 1), (2, 2, 2), (3, 3, 1),
    ]  # fmt: skip
