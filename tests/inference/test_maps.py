"""Maps and large pictures: read in windows, parsed as if they were whole, written with their georeference."""

import json
import resource
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ordnet
from ordnet.commands import app
from ordnet.data.labels import IGNORE
from ordnet.data.raster import Raster, Smaller, needs_windows
from ordnet.errors import OrdnetError
from ordnet.inference import maps, stream
from ordnet.inference.maps import predict_map
from ordnet.model import checkpoint
from ordnet.model.parts import parts_of, tiles
from ordnet.model.pixels import to_input

rasterio = pytest.importorskip("rasterio")
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
from rasterio.control import GroundControlPoint  # noqa: E402
from rasterio.transform import from_origin  # noqa: E402

NAMES = ("house", "tree", "road")
COLOURS = ((200, 0, 0), (0, 160, 0), (90, 90, 90))
UTM = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_400_000, 0.2, 0.2)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    net = ordnet.build("ordnet", classes=3, backbone="tiny")
    checkpoint.save(path, net, NAMES, COLOURS, about={"long_side": 48})
    return str(path)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """What is cut at thousands of pixels is cut at dozens here."""
    monkeypatch.setattr(maps, "BLOCK", 16)
    monkeypatch.setattr(stream, "PART", 32)
    monkeypatch.setattr(maps, "_POLYGONS", 64)


def blobs(height: int, width: int, count: int = 3, seed: int = 0, top: int = 255) -> np.ndarray:
    """(bands, H, W): noise that has shapes."""
    coarse = np.random.default_rng(seed).random((-(-height // 7), -(-width // 7), count))
    return (np.kron(coarse, np.ones((7, 7, 1)))[:height, :width] * top).transpose(2, 0, 1)


def tiff(path: Path, values: np.ndarray, **profile) -> Path:
    values = values if values.dtype != np.float64 else values.astype(np.uint8)
    count, height, width = values.shape
    nodata_mask = profile.pop("mask", None)
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=values.dtype, **profile
    ) as file:
        file.write(values)
        if nodata_mask is not None:
            file.write_mask(nodata_mask)
    return path


def run(*words, **environment):
    return CliRunner().invoke(app, ["predict", *map(str, words)], env=environment)


def oracle(model: str, pixels: np.ndarray) -> np.ndarray:
    return ordnet.load(model, device="cpu", long_side="own")(np.ascontiguousarray(pixels)).labels


# ---- the command ------------------------------------------------------------------------------------------------


def test_a_map_keeps_its_place_on_earth(model, tmp_path):
    values = blobs(90, 130)
    path = tiff(tmp_path / "ortho.tif", values, **UTM)
    result = run(model, path, "--out", tmp_path / "out", "--whole-up-to", 0, "--save", "overlay,labels,beside")
    assert result.exit_code == 0, result.output
    assert "130 x 90 px, EPSG:32633, 0.2 metre a pixel, bands 1, 2, 3 of 3; seen at its own size" in result.output
    assert "--long-side" in result.output  # the model knows another scale
    with rasterio.open(tmp_path / "out/ortho.labels.tif") as file:
        assert (file.crs, file.transform) == (UTM["crs"], UTM["transform"])
        assert file.profile["tiled"] and file.profile["compress"] == "deflate" and file.nodata == IGNORE
        assert file.colormap(1)[1][:3] == COLOURS[1] and file.tags(1)["CLASS_2"] == "road"
        labels = file.read(1)
    expected = oracle(model, values.astype(np.uint8).transpose(1, 2, 0))
    assert np.mean(labels == expected) > 0.999 and len(np.unique(labels)) > 1
    record = json.loads((tmp_path / "out/ortho.json").read_text())
    assert record["long_side"] is None and record["crs"] == "EPSG:32633"
    assert record["areas"] == pytest.approx({NAMES[i]: np.mean(labels == i) for i in np.unique(labels)})
    assert Image.open(tmp_path / "out/ortho.overlay.png").size == (130, 90)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "ortho.beside.png", "ortho.json", "ortho.labels.tif", "ortho.overlay.png",
    ]  # fmt: skip
    again = run(model, path, "--out", tmp_path / "out", "--whole-up-to", 0, "--save", "overlay,labels,beside")
    assert "1 were done already" in again.output


@pytest.mark.parametrize("options", [{"tiled": True, "blockxsize": 16, "blockysize": 32}, {"interleave": "band"}])
def test_how_the_file_is_stored_does_not_matter(model, tmp_path, options):
    values = blobs(70, 100)
    path = tiff(tmp_path / "map.tif", values, compress="deflate", **UTM, **options)
    parser = ordnet.load(model, device="cpu", whole_up_to=0, tile=32)
    with Raster(path) as raster:
        predict_map(parser, raster, tmp_path / "map")
    with rasterio.open(tmp_path / "map.labels.tif") as file:
        assert np.mean(file.read(1) == oracle(model, values.astype(np.uint8).transpose(1, 2, 0))) > 0.999


@pytest.mark.parametrize("decoder", ["plain", "dense"])
@pytest.mark.parametrize("whole_up_to", [0, 10**9])
def test_a_smaller_copy_is_seen_as_other_pictures_are(tmp_path, decoder, whole_up_to):
    """Scores are enlarged, not labels, whether the copy takes one pass or is streamed."""
    torch.manual_seed(1)
    backbone = "tiny" if decoder == "plain" else "mobilenet_v2"
    net = ordnet.build("ordnet", classes=3, backbone=backbone, neck=8, decoder=decoder).double().eval()
    values = blobs(150, 200)
    path = tiff(tmp_path / "map.tif", values, **UTM)
    with Raster(path) as raster, torch.inference_mode():
        copy = Smaller(raster, 60, 80)
        everywhere = copy[:60, :80]
        small = net.small_scores(to_input(everywhere, net))
        expected = net.upsampled(small, (150, 200))[0].argmax(0).numpy()
        found = np.full((150, 200), 77, np.uint8)
        for area, ids in stream.label_parts(net, copy, 48, 256, size=(150, 200), whole_up_to=whole_up_to, step=16):
            assert area[0].start % 16 == 0 == area[1].start % 16 and (found[area] == 77).all()
            found[area] = ids
    assert np.mean(found == expected) > 0.99


def test_windows_that_know_nothing_of_each_other_can_be_enlarged_too(tmp_path):
    net = ordnet.build("danet", classes=3, backbone="tiny", align_corners=False).eval()
    pixels = blobs(60, 90).astype(np.uint8).transpose(1, 2, 0)
    with pytest.warns(UserWarning, match="know nothing"):
        one = stream.labels(net, pixels, tile=90, size=(120, 180))
        many = stream.labels(net, pixels, tile=32, halo=40, size=(120, 180))
    with torch.inference_mode():
        expected = net.upsampled(net.small_scores(to_input(pixels, net)), (120, 180))[0].argmax(0).numpy()
    assert np.mean(one == expected) > 0.99
    assert many.shape == (120, 180)


def test_plain_large_pictures_are_read_in_windows(model, tmp_path):
    """Without a georeference the model's own scale counts, as for all pictures."""
    values = blobs(60, 100).astype(np.uint8)
    Image.fromarray(values.transpose(1, 2, 0)).save(tmp_path / "scan.png")
    tiff(tmp_path / "plain.tif", values)
    out = tmp_path / "out"
    small = run(model, tmp_path / "scan.png", "--out", out, "--save", "labels")
    assert small.exit_code == 0 and (out / "scan.labels.png").exists()
    result = run(
        model, tmp_path / "scan.png", tmp_path / "plain.tif", "--out", out, "--save", "labels", ORDNET_MAX_PIXELS="5000"
    )
    assert result.exit_code == 0, result.output
    assert "100 x 60 px, bands 1, 2, 3 of 3; seen as 48 x 29 px" in result.output
    with rasterio.open(out / "scan.labels.tif") as file, rasterio.open(out / "plain.labels.tif") as other:
        assert file.crs is None and file.transform.is_identity
        assert np.array_equal(file.read(1), other.read(1))
        whole = np.asarray(Image.open(out / "scan.labels.png"))
        assert np.mean(file.read(1) == whole) > 0.9  # means instead of a bicubic copy


def test_windows_are_bounded_too(model, tmp_path):
    """A few kilobytes may claim more pixels than anybody has time for."""
    path = tiff(tmp_path / "claims.tif", blobs(60, 100).astype(np.uint8), **UTM)
    result = run(model, path, "--out", tmp_path / "out", "--save", "labels", ORDNET_MAX_PIXELS="50")
    assert result.exit_code == 1
    assert "100 x 60 pixels are more than the 5,000 that are read in windows" in result.output
    assert "ORDNET_MAX_PIXELS=60" in result.output
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_bands_are_chosen(model, tmp_path):
    values = blobs(40, 60, count=5)
    path = tiff(tmp_path / "five.tif", values, **UTM)
    out = tmp_path / "out"
    result = run(model, path, "--out", out, "--save", "labels", "--bands", "4,3,2")
    assert result.exit_code == 0 and "bands 4, 3, 2 of 5" in result.output, result.output
    labels = rasterio.open(out / "five.labels.tif").read(1)
    expected = oracle(model, values[[3, 2, 1]].astype(np.uint8).transpose(1, 2, 0))
    assert np.mean(labels == expected) > 0.999
    result = run(model, path, "--out", out, "--save", "labels", "--bands", "5")
    assert "band 5 of 5" in result.output  # other bands, another result
    for wrong, word in (("1,2", "one or three of 1 to 5"), ("6,1,2", "1 to 5"), ("0", "1 to 5"), ("a", "numbers")):
        result = run(model, path, "--out", out, "--bands", wrong)
        assert result.exit_code == 1 and word in result.stderr + str(result.exception), wrong


def test_where_there_is_nothing_there_is_no_class(model, tmp_path):
    values = blobs(40, 60).astype(np.uint8) + 1
    values[:, :10] = 0
    values[0, 20] = 0  # one band alone may be dark
    mask = np.full((40, 60), 255, np.uint8)
    mask[:, :7] = 0
    alpha = np.concatenate([values, mask[None]])
    files = {
        "nodata": tiff(tmp_path / "nodata.tif", values, nodata=0, **UTM),
        "mask": tiff(tmp_path / "mask.tif", values, mask=mask, **UTM),
        "alpha": tiff(tmp_path / "alpha.tif", alpha, photometric="rgb", alpha="yes", **UTM),
    }
    assert run(model, *files.values(), "--out", tmp_path / "out").exit_code == 0
    for name in files:
        labels = rasterio.open(tmp_path / f"out/{name}.labels.tif").read(1)
        nothing = (values == 0).all(axis=0) if name == "nodata" else mask == 0
        assert np.array_equal(labels == IGNORE, nothing), name
        record = json.loads((tmp_path / f"out/{name}.json").read_text())
        assert sum(record["areas"].values()) == pytest.approx(1)
        assert record["seen_pixels"] == int((~nothing).sum())


@pytest.mark.parametrize("how", ["gcps", "rpcs", "world file"])
def test_other_georeferences_are_kept(model, tmp_path, how):
    values = blobs(40, 60)
    path = tmp_path / "map.tif"
    if how == "gcps":
        points = [GroundControlPoint(row=r, col=c, x=10 + c, y=50 - r) for r in (0, 40) for c in (0, 60)]
        tiff(path, values, gcps=points, crs="EPSG:4326")
    elif how == "rpcs":
        rpc = rasterio.rpc.RPC(
            height_off=0, height_scale=1, lat_off=50, lat_scale=1, line_den_coeff=[1.0] + [0.0] * 19,
            line_num_coeff=[0.0] * 20, line_off=0, line_scale=1, long_off=10, long_scale=1,
            samp_den_coeff=[1.0] + [0.0] * 19, samp_num_coeff=[0.0] * 20, samp_off=0, samp_scale=1,
        )  # fmt: skip
        tiff(path, values, rpcs=rpc)
    else:
        path = tmp_path / "map.png"
        Image.fromarray(values.astype(np.uint8).transpose(1, 2, 0)).save(path)
        path.with_suffix(".pgw").write_text("0.5\n0\n0\n-0.5\n100.25\n199.75\n")
    assert needs_windows(path)
    result = run(model, path, "--out", tmp_path / "out", "--save", "labels")
    assert result.exit_code == 0, result.output
    with rasterio.open(path) as source, rasterio.open(tmp_path / "out/map.labels.tif") as labels:
        assert labels.transform == source.transform
        assert [point.asdict() | {"id": 0} for point in labels.gcps[0]] == [
            point.asdict() | {"id": 0} for point in source.gcps[0]
        ]
        assert (labels.rpcs is None) == (source.rpcs is None)


# ---- values -----------------------------------------------------------------------------------------------------


def test_sixteen_bits_and_stretching(model, tmp_path):
    values = blobs(60, 80, top=3000).astype(np.uint16)
    path = tiff(tmp_path / "scan.tif", values, **UTM)
    with Raster(path) as raster:
        assert np.array_equal(raster[:60, :80], ((values.astype(int) * 255 + 32767) // 65535).transpose(1, 2, 0))
        assert "16 bits divided by 257; the lightest of a sample is" in raster.words()
    with Raster(path, stretch=True) as raster:
        stretched = raster[:60, :80]
        assert "uint16 stretched from" in raster.words()
    for band in range(3):
        low, high = np.percentile(values[band], (0.5, 99.5))
        expected = np.clip((values[band] - low) / (high - low) * 255 + 0.5, 0, 255).astype(np.uint8)
        assert np.array_equal(stretched[..., band], expected)
    result = run(model, path, "--out", tmp_path / "out", "--stretch")
    assert result.exit_code == 0 and "stretched" in result.output


def test_float_values_need_stretching(model, tmp_path):
    values = blobs(30, 40, top=0.3).astype(np.float32)
    values[:, :3] = np.nan
    path = tiff(tmp_path / "heat.tif", values, nodata=np.nan, **UTM)
    result = run(model, path, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "float32, which have no fixed white; --stretch" in result.stderr
    result = run(model, path, "--out", tmp_path / "out", "--stretch", "--save", "labels")
    assert result.exit_code == 0, result.output
    assert (rasterio.open(tmp_path / "out/heat.labels.tif").read(1)[:3] == IGNORE).all()


def test_deep_colours_of_plain_pictures_are_stretched_with_all_their_bits(model, tmp_path):
    values = blobs(30, 40, top=900).astype(np.uint16)
    with rasterio.open(tmp_path / "deep.png", "w", driver="PNG", height=30, width=40, count=3, dtype="uint16") as file:
        file.write(values)
    from ordnet.data.pictures import open_rgb

    assert np.asarray(open_rgb(tmp_path / "deep.png")).max() == 3  # the upper half of the bits
    stretched = np.asarray(open_rgb(tmp_path / "deep.png", stretch=True))
    assert stretched.max() == 255 and len(np.unique(stretched)) > 50
    result = run(model, tmp_path / "deep.png", "--out", tmp_path / "out", "--stretch", "--save", "labels")
    assert result.exit_code == 0 and (tmp_path / "out/deep.labels.png").exists()


def test_palettes_and_grey(tmp_path):
    ids = (blobs(20, 30, count=1) > 128).astype(np.uint8)
    path = tiff(tmp_path / "palette.tif", ids, photometric="palette", **UTM)
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {0: (10, 20, 30, 255), 1: (200, 100, 50, 255)})
    with Raster(path) as raster:
        assert np.array_equal(raster[:20, :30], np.array([[10, 20, 30], [200, 100, 50]], np.uint8)[ids[0]])
    with Raster(tiff(tmp_path / "grey.tif", ids * 200, **UTM)) as raster:
        assert np.array_equal(raster[5:200, 5:9], np.repeat(ids[0, 5:, 5:9, None] * 200, 3, axis=2))


def test_any_window_of_a_smaller_copy_is_that_part_of_it(tmp_path):
    with Raster(tiff(tmp_path / "map.tif", blobs(203, 311), **UTM)) as raster:
        copy = Smaller(raster, 47, 71)
        whole = copy[:47, :71].astype(int)
        for area in tiles(47, 71, 13):
            assert np.abs(copy[area] - whole[area]).max() <= 1


# ---- polygons ---------------------------------------------------------------------------------------------------


def shoelace(ring) -> float:
    x, y = np.asarray(ring).T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2)


@pytest.mark.parametrize("size", [(50, 60), (100, 150)])
def test_polygons_cover_what_the_labels_say(model, tmp_path, size):
    path = tiff(tmp_path / "map.tif", blobs(*size), **UTM)
    result = run(model, path, "--out", tmp_path / "out", "--save", "polygons")
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "out/map.polygons.geojson").read_text())
    labels = rasterio.open(tmp_path / "out/map.labels.tif").read(1)
    assert len(content["features"]) == json.loads((tmp_path / "out/map.json").read_text())["polygons"]
    from rasterio.features import rasterize
    from rasterio.warp import transform_geom

    painted = []
    for feature in content["features"]:
        outer, *holes = feature["geometry"]["coordinates"]
        assert shoelace(outer) > 0 and all(shoelace(hole) < 0 for hole in holes)
        longitude, latitude = outer[0]
        assert 14.9 < longitude < 15.1 and 48 < latitude < 49  # the middle of zone 33
        number = feature["properties"]["class"]
        assert feature["properties"]["name"] == NAMES[number]
        painted.append((transform_geom("EPSG:4326", UTM["crs"], feature["geometry"]), number))
    again = rasterize(painted, out_shape=labels.shape, transform=UTM["transform"], fill=IGNORE, dtype="uint8")
    assert np.mean(again == labels) > 0.99


def test_polygons_of_a_photo_are_in_pixels(model, tmp_path):
    Image.fromarray(blobs(30, 40).astype(np.uint8).transpose(1, 2, 0)).save(tmp_path / "photo.png")
    assert run(model, tmp_path / "photo.png", "--out", tmp_path / "out", "--save", "polygons,labels").exit_code == 0
    content = json.loads((tmp_path / "out/photo.polygons.geojson").read_text())
    labels = np.asarray(Image.open(tmp_path / "out/photo.labels.png"))
    area = {}
    for feature in content["features"]:
        rings = feature["geometry"]["coordinates"]
        area.setdefault(feature["properties"]["class"], []).append(sum(shoelace(ring) for ring in rings))
    assert {number: sum(parts) for number, parts in area.items()} == {
        int(number): int((labels == number).sum()) for number in np.unique(labels)
    }


# ---- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0.3, 0.7, 0.98])
def test_a_cut_off_map_is_named_and_nothing_is_written(model, tmp_path, cut):
    noise = np.random.default_rng(0).integers(0, 256, (3, 90, 80), dtype=np.uint8)
    path = tiff(tmp_path / "map.tif", noise, compress="deflate", tiled=True, blockxsize=16, blockysize=16, **UTM)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    result = run(model, path, "--out", tmp_path / "out", "--whole-up-to", 0)
    assert result.exit_code == 1 and "map.tif" in result.stderr, result.output
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


def test_forms_that_maps_do_not_have_are_named(model, tmp_path):
    path = tiff(tmp_path / "map.tif", blobs(30, 40), **UTM)
    for form in ("probabilities", "coco"):
        result = run(model, path, "--out", tmp_path / "out", "--save", form)
        assert result.exit_code == 1 and form in result.stderr and "--save labels," in result.stderr
    result = run(model, path, "--out", tmp_path / "out", "--protocol", "multiscale")
    assert result.exit_code == 0  # small enough to be there as a whole
    result = run(
        model, path, "--out", tmp_path / "out", "--force", "--protocol", "multiscale", ORDNET_MAX_PIXELS="1000"
    )
    assert result.exit_code == 1 and "the protocol whole" in result.stderr


def test_pieces_too_large_to_be_decoded_are_refused(tmp_path, monkeypatch):
    path = tiff(tmp_path / "map.tif", blobs(90, 80), compress="deflate", blockysize=90, **UTM)
    monkeypatch.setattr("ordnet.data.raster._LARGEST_BLOCK", 1000)
    with pytest.raises(OrdnetError, match=r"stored in pieces of 80 x 90 px.*gdal_translate"):
        Raster(path)


def test_files_that_lead_elsewhere_are_not_opened(tmp_path):
    tiff(tmp_path / "map.tif", blobs(20, 30), **UTM)
    mosaic = tmp_path / "mosaic.tif"
    mosaic.write_text(
        '<VRTDataset rasterXSize="30" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f"<SourceFilename>{tmp_path / 'map.tif'}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    assert not needs_windows(mosaic)
    with pytest.raises(OrdnetError, match="cannot be read"):
        Raster(mosaic)


def _with_tag(path, **tags):
    with rasterio.open(path, "r+") as file:
        file.update_tags(ns="OVERVIEWS", **tags)


@pytest.mark.parametrize("how", ["tag", "aux.xml", "list for overviews", "list for a mask", "tag of overviews"])
def test_overviews_from_elsewhere_are_not_opened(model, tmp_path, how):
    """GDAL follows what a file says of its overviews: to any address, and to pipes, for which it waits."""
    path = tiff(tmp_path / "map.tif", blobs(200, 300), **UTM)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        url = f"/vsicurl/http://127.0.0.1:{server.getsockname()[1]}/x.tif"
        band = f"<SimpleSource><SourceFilename>{url}</SourceFilename><SourceBand>1</SourceBand></SimpleSource>"
        bands = "".join(f'<VRTRasterBand dataType="Byte" band="{n}">{band}</VRTRasterBand>' for n in (1, 2, 3))
        mosaic = f'<VRTDataset rasterXSize="150" rasterYSize="100">{bands}</VRTDataset>'
        if how == "tag":
            _with_tag(path, OVERVIEW_FILE=url)
        elif how == "aux.xml":
            item = f'<MDI key="OVERVIEW_FILE">{url}</MDI>'
            named = f'<PAMDataset><Metadata domain="OVERVIEWS">{item}</Metadata></PAMDataset>'
            (tmp_path / "map.tif.aux.xml").write_text(named)
        elif how == "list for overviews":
            (tmp_path / "map.tif.ovr").write_text(mosaic)
        elif how == "list for a mask":
            (tmp_path / "map.tif.msk").write_text(mosaic)
        else:
            _with_tag(tiff(tmp_path / "map.tif.ovr", blobs(100, 150)), OVERVIEW_FILE=url)
        result = run(model, path, "--out", tmp_path / "out", "--long-side", "48")
        assert result.exit_code == 1 and "map.tif" in result.stderr and "Traceback" not in result.stderr
        assert "refers to another file" in result.stderr or "is no TIFF file" in result.stderr
        with pytest.raises(TimeoutError):
            server.accept()


def test_overviews_of_its_own_are_used(model, tmp_path):
    path = tiff(tmp_path / "map.tif", blobs(200, 300), **UTM)
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4])
    assert (tmp_path / "map.tif.ovr").exists()
    assert run(model, path, "--out", tmp_path / "out", "--long-side", "48").exit_code == 0


@pytest.mark.parametrize(
    "place", [{"crs": 'LOCAL_CS["ours",UNIT["metre",1]]'}, {"transform": from_origin(9e9, 9e9, 9, 9)}]
)
def test_polygons_that_have_no_place_on_earth(model, tmp_path, place):
    """A trace-back, and the end of all pictures that came after it."""
    tiff(tmp_path / "a.tif", blobs(30, 40), **{**UTM, **place})
    tiff(tmp_path / "b.tif", blobs(30, 40), **UTM)
    result = run(model, tmp_path, "--out", tmp_path / "out", "--save", "labels,polygons")
    assert result.exit_code == 1 and "1 of 2 pictures failed" in result.stderr
    assert "cannot be turned into longitude and latitude" in result.stderr
    assert (tmp_path / "out/b.polygons.geojson").exists()


def test_without_the_extra_photos_work_and_bands_say_what_to_install(model, tmp_path, monkeypatch):
    path = tiff(tmp_path / "map.tif", blobs(30, 40), **UTM)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert run(model, path, "--out", tmp_path / "out", "--save", "labels").exit_code == 0
    assert (tmp_path / "out/map.labels.png").exists()
    for words in (("--bands", "1"), ("--save", "polygons", "--force")):
        result = run(model, path, "--out", tmp_path / "out", *words)
        assert result.exit_code == 1 and "ordnet[geo]" in result.stderr
    result = run(model, path, "--out", tmp_path / "new", ORDNET_MAX_PIXELS="1000")
    assert result.exit_code == 1 and "ordnet[geo]" in result.stderr


def test_a_full_disk_is_an_error_and_leaves_nothing(model, tmp_path):
    """GDAL writes its last blocks while closing, and says nothing where that fails."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 400, 400), dtype=np.uint8)
    path = tiff(tmp_path / "map.tif", noise, **UTM)
    parser = ordnet.load(model, device="cpu", whole_up_to=0, tile=128)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
        with Raster(path) as raster, pytest.raises((OrdnetError, OSError)):
            predict_map(parser, raster, tmp_path / "out/map")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


@pytest.mark.parametrize("seed", range(12))
def test_damaged_bytes_give_labels_or_our_error(model, tmp_path, seed):
    path = tiff(tmp_path / "map.tif", blobs(40, 50), compress="deflate", **UTM)
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for place in random.integers(0, len(content) if seed % 2 else 400, 6):
        content[int(place)] = int(random.integers(0, 256))
    path.write_bytes(bytes(content))
    parser = ordnet.load(model, device="cpu", long_side="own")
    try:
        with Raster(path) as raster:
            if raster.shape[0] * raster.shape[1] < 10**6:
                predict_map(parser, raster, tmp_path / "map")
    except OrdnetError as error:
        assert "map.tif" in str(error)


def test_tiles_begin_at_multiples_of_the_step():
    for height, width, size, step in ((100, 37, 32, 16), (5, 5, 3, 16), (64, 64, 40, 16)):
        seen = np.zeros((height, width), int)
        for area in tiles(height, width, size, step):
            for rows, columns in parts_of(area, 20, step):
                assert rows.start % step == 0 == columns.start % step
                seen[rows, columns] += 1
        assert (seen == 1).all()
