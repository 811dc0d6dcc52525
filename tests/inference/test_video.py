"""Videos: the same rate, size and times out as in; every frame counted; broken ones named."""

import csv
import json
import os
import resource
import struct
import subprocess
import sys
import threading
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ordnet
from ordnet.commands import app
from ordnet.errors import OrdnetError
from ordnet.inference.video import Video, _Legend, predict_video
from ordnet.model import checkpoint
from ordnet.picture.grid import legend

av = pytest.importorskip("av")
NAMES = ("sky", "tree", "road")
COLOURS = ((0, 0, 255), (0, 255, 0), (128, 128, 128))


def clip(path, frames=12, size=(48, 64), rate=Fraction(30000, 1001), codec="libx264", seed=0):
    """A bright square that moves over a dark ground."""
    height, width = size
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size = 4
        for number in range(frames):
            picture = noise.copy()
            picture[10:30, 2 * number : 2 * number + 20] = (230, 120, 40)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    checkpoint.save(path, ordnet.build("ordnet", classes=3, backbone="tiny"), NAMES, COLOURS)
    return path


def read(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)]
        return stream.average_rate, frames


def run(*words):
    return CliRunner().invoke(app, ["predict", *map(str, words)])


def test_a_clip_through_the_command_line(model, tmp_path):
    source = clip(tmp_path / "clip.mp4")
    done = run(model, source, "--out", tmp_path / "out", "--label-frames")
    assert done.exit_code == 0, done.output
    rate, frames = read(tmp_path / "out" / "clip.overlay.mp4")
    expected_rate, expected = read(source)
    assert float(rate) == pytest.approx(float(expected_rate), rel=1e-3)
    assert [time for time, _ in frames] == pytest.approx([time for time, _ in expected], abs=1e-3)
    assert frames[0][1].shape == (48, 64, 3)
    parser = ordnet.load(model)
    rows = list(csv.reader((tmp_path / "out" / "clip.areas.csv").open()))
    assert rows[0] == ["frame", "seconds", *NAMES]
    assert len(rows) == 13
    for number, (_, pixels) in enumerate(expected):
        labels = np.asarray(Image.open(tmp_path / "out" / "clip.labels" / f"{number:06}.png"))
        parse = parser(pixels)
        np.testing.assert_array_equal(labels, parse.labels)
        shares = [float(value) for value in rows[number + 1][2:]]
        assert shares == pytest.approx([parse.areas().get(name, 0) for name in NAMES], abs=1e-4)
        assert sum(shares) == pytest.approx(1, abs=1e-3)
    record = json.loads((tmp_path / "out" / "clip.json").read_text())
    assert (record["frames"], record["broken"]) == (12, [])
    # as the records of pictures: the whole path; the classes that occur, largest first, and their colours
    assert record["video"] == str(source.resolve())
    means = {name: np.mean([float(row[place + 2]) for row in rows[1:]]) for place, name in enumerate(NAMES)}
    assert record["areas"] == pytest.approx({name: mean for name, mean in means.items() if mean}, abs=1e-4)
    assert list(record["areas"].values()) == sorted(record["areas"].values(), reverse=True)
    colours = dict(zip(NAMES, ("#0000ff", "#00ff00", "#808080"), strict=True))
    assert record["colours"] == {name: colours[name] for name in record["areas"]}
    again = run(model, source, "--out", tmp_path / "out", "--label-frames")
    assert "was done already" in again.output
    assert "12 frames" in run(model, source, "--out", tmp_path / "out", "--smooth", "0.5").output


class Halves:
    """Left the second class, right the first one; the third never."""

    classes, colours = NAMES, COLOURS

    def __call__(self, pixels):
        labels = np.zeros(pixels.shape[:2], np.uint8)
        labels[:, : labels.shape[1] // 2] = 1
        return SimpleNamespace(labels=labels)


def test_every_frame_says_which_colour_is_which_class(tmp_path):
    source = clip(tmp_path / "clip.mp4", size=(240, 320), frames=6)
    record = predict_video(Halves(), str(source), tmp_path)
    assert list(record["areas"].items()) == [("sky", 0.5), ("tree", 0.5)]
    strip = np.asarray(legend([("sky", COLOURS[0]), ("tree", COLOURS[1])], 320)).astype(int)
    _, frames = read(tmp_path / "clip.overlay.mp4")
    assert len(frames) == 6
    for _, frame in frames:
        assert frame.shape == (240, 320, 3)
        assert np.abs(frame[-len(strip) :] - strip).mean() < 12  # colours at half resolution, compressed


def test_a_legend_keeps_its_classes_for_a_while_and_never_covers_the_picture():
    names = tuple(f"class {number}" for number in range(40))
    key = _Legend(SimpleNamespace(classes=names, colours=((9, 9, 9),) * 40))

    def drawn(labels, height=200, width=300):
        frame = np.full((height, width, 3), 77, np.uint8)
        key.draw(frame, np.resize(np.array(labels, np.uint8), (height, width)))
        rows = int((frame != 77).any(axis=(1, 2)).sum())
        assert rows == 0 or (frame[-rows:] != 77).any(axis=(1, 2)).all()  # at the bottom
        assert 5 * rows <= height
        return rows

    assert drawn([0, 1]) == drawn([0]) > 0  # the other one was there a moment ago
    assert drawn(range(40)) in (0, 26)  # no room for all: the large ones or none
    assert drawn([0], height=60) == 0
    assert drawn([3], height=2160, width=3840) % 52 == 0  # twice as large


def test_a_video_of_the_same_name_is_not_overwritten(model, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, other = (clip(tmp_path / name / "clip.mp4") for name in ("a", "b"))
    out = tmp_path / "out"
    assert run(model, first, "--out", out).exit_code == 0
    refused = run(model, other, "--out", out)
    assert refused.exit_code == 1 and f"are results of {first}; choose another --out" in refused.output
    record = json.loads((out / "clip.json").read_text())
    (out / "clip.json").write_text(json.dumps({**record, "video": "clip.mp4"}))  # as earlier versions wrote it
    done = subprocess.run(
        [sys.executable, "-m", "ordnet", "predict", str(model), "clip.mp4", "--out", str(out)],
        cwd=first.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "clip.mp4 was done already" in done.stdout, done.stderr
    assert run(model, other, "--out", out, "--force").exit_code == 0


def test_names_of_marks_are_not_shown(model, tmp_path, monkeypatch):
    source = clip(tmp_path / "clip.mp4")

    def refused(path, *words, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.touch", refused)
    found = run(model, source, "--out", tmp_path / "out")
    assert f"cannot write to {tmp_path / 'out'}: permission denied; choose another --out" in found.output
    assert ".unfinished" not in found.output and "Errno" not in found.output


def test_broken_frames_are_named_and_left_out(model, tmp_path):
    source = clip(tmp_path / "clip.avi", frames=40, codec="mpeg4")
    data = bytearray(source.read_bytes())
    packets = []
    with av.open(str(source)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    place, size = packets[13]
    data[place : place + size] = b"\xff" * size
    source.write_bytes(data)
    record = predict_video(ordnet.load(model), str(source), tmp_path)
    assert record["broken"]
    assert all(words.startswith("frame ") for words in record["broken"])
    assert 30 <= record["frames"] < 40
    assert len(read(tmp_path / "clip.overlay.mp4")[1]) == record["frames"]


def test_smoothing_calms_flicker(tmp_path):
    """A parser that changes its mind with every frame."""

    class Flickering:
        classes, colours = NAMES, COLOURS
        count = 0

        def scores(self, pixels):
            self.count += 1
            scores = np.zeros((3, *pixels.shape[:2]), np.float32)
            scores[0] = 1.0
            scores[1] = 2.0 if self.count % 4 == 0 else 0.0
            return scores

    source = clip(tmp_path / "clip.mp4", frames=12)
    changes = {}
    for smoothing in (0.01, 0.7):
        predict_video(Flickering(), str(source), tmp_path, smoothing=smoothing)
        rows = list(csv.reader((tmp_path / "clip.areas.csv").open()))[1:]
        changes[smoothing] = sum(one[2:] != other[2:] for one, other in pairwise(rows))
    assert changes == {0.01: 5, 0.7: 0}
    with pytest.raises(OrdnetError, match="--smooth"):
        predict_video(Flickering(), str(source), tmp_path, smoothing=1.0)


def test_odd_sides_stay_as_they_are(model, tmp_path):
    source = tmp_path / "odd.mkv"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 63, 47, "bgr0"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((47, 63, 3), np.uint8), "rgb24")))
        container.mux(stream.encode(None))
    predict_video(ordnet.load(model), str(source), tmp_path)
    assert read(tmp_path / "odd.overlay.mp4")[1][0][1].shape == (47, 63, 3)


@pytest.mark.parametrize("content", [b"", b"no video", b"\0" * 5000])
def test_what_is_no_video_is_named(model, tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    done = run(model, tmp_path / "a.mp4", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "cannot be read as a video" in done.output
    assert not list((tmp_path / "out").glob("*.mp4")) if (tmp_path / "out").exists() else True
    missing = run(model, tmp_path / "missing.mp4", "--out", tmp_path / "out")
    assert missing.exit_code == 1
    assert "no video at" in missing.output


def test_a_cut_off_file_gives_what_it_has(model, tmp_path):
    source = clip(tmp_path / "a.mkv", frames=40)
    source.write_bytes(source.read_bytes()[:-2000])
    record = predict_video(ordnet.load(model), str(source), tmp_path)
    assert 0 < record["frames"] <= 40
    assert len(read(tmp_path / "a.overlay.mp4")[1]) == record["frames"]


def test_reading_ends_when_told(tmp_path):
    video = Video(str(clip(tmp_path / "a.mp4", frames=30)))
    frames = video.read()
    next(frames)
    video.stop.set()
    assert len(list(frames)) < 29
    video.close()


def test_a_stream_over_the_network(model, tmp_path):
    """It has no length and no place to go back to: frames come until it ends."""
    clip(tmp_path / "live.ts", frames=8, rate=25)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/live.ts"
        result = run(model, address, "--out", tmp_path / "out")
        server.shutdown()
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out/live.json").read_text())["frames"] == 8
    assert len(read(tmp_path / "out/live.overlay.mp4")[1]) == 8


def test_a_camera_that_is_not_there_is_said(model, tmp_path):
    result = run(model, "/dev/video97", "--out", tmp_path / "out")
    assert result.exit_code == 1 and "/dev/video97" in result.stderr


# ---- files made to hurt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {secret}\n",
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'></MPD>",
        "v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    ],
)
def test_a_play_list_opens_no_other_file_and_no_address(tmp_path, text):
    """FFmpeg would follow them whatever the file is called."""
    secret = clip(tmp_path / "secret.ts", codec="mpeg2video", rate=25)
    (tmp_path / "a.mp4").write_text(text.format(secret=secret))
    with pytest.raises(OrdnetError, match="cannot be read as a video"):
        Video(str(tmp_path / "a.mp4"))


def test_frames_beyond_the_bound_are_refused(tmp_path, monkeypatch):
    path = clip(tmp_path / "a.mp4")
    monkeypatch.setenv("ORDNET_MAX_PIXELS", "3000")
    with pytest.raises(OrdnetError, match="frames of 64 x 48 pixels are more than the 3,000"):
        Video(str(path))


def test_a_pipe_is_no_video(tmp_path):
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(OrdnetError, match="a pipe"):
        Video(str(tmp_path / "a.mp4"))


@pytest.mark.parametrize("scale", [120_001, 2**31 - 1, 2**32 - 1])
def test_a_frame_that_lasts_for_days_is_no_end_of_the_command(model, tmp_path, scale):
    """Its rate was rounded to 0, which the encoder refused at its very end; nobody heard of that, and all waited."""
    content = clip(tmp_path / "sound.avi", frames=3, codec="mpeg4", rate=25).read_bytes()
    place = content.index(b"strh") + 28  # seconds of a frame as a fraction
    (tmp_path / "a.avi").write_bytes(content[:place] + struct.pack("<II", scale, 1) + content[place + 8 :])
    line = [
        sys.executable,
        "-m",
        "ordnet",
        "predict",
        str(model),
        str(tmp_path / "a.avi"),
        "--out",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1), done.stderr


def test_a_full_disk_ends_the_command(model, tmp_path):
    """Most of a small video is written when it is closed: that error, too, has to be heard of."""
    path = clip(tmp_path / "a.mp4")
    line = [sys.executable, "-m", "ordnet", "predict", str(model), str(path), "--out", str(tmp_path / "out")]
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1500, 1500))
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, preexec_fn=full)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "a.mp4" in done.stderr and not (tmp_path / "out/a.overlay.mp4").exists()


def test_damaged_clips(tmp_path):
    """Bytes changed anywhere: frames, or an error of ours."""
    sound = {kind: clip(tmp_path / f"sound.{kind}", frames=6).read_bytes() for kind in ("mp4", "mkv", "avi")}
    rng = np.random.default_rng(0)
    for turn in range(60):
        kind = ("mp4", "mkv", "avi")[turn % 3]
        data = bytearray(sound[kind])
        for _ in range(rng.integers(1, 12)):
            data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
        path = tmp_path / f"a.{kind}"
        path.write_bytes(data[: rng.integers(1, len(data))] if turn % 4 == 0 else data)
        try:
            video = Video(str(path))
            for frame in video.read():
                assert frame.pixels.ndim == 3 and frame.seconds >= 0
            video.close()
        except OrdnetError:
            pass
