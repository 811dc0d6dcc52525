"""Many pictures or videos and one model → a folder of results that can be continued later."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ordnet.data.dataset import neighbours
from ordnet.data.pictures import Listed, find_pictures
from ordnet.data.shards import stamp
from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.inference.coco import merged
from ordnet.inference.parse import FORMS, file_of
from ordnet.inference.parser import find, load
from ordnet.inference.stream import Progress
from ordnet.inference.video import OnFrame, is_endless, predict_video, stem_of


class Prediction:
    """The pictures that one of `world` processes has to parse, and the folder that takes the results."""

    def __init__(
        self,
        model: str,
        images: Sequence[str],
        out: Path,
        save: Sequence[str],
        *,
        strength: float = 0.5,
        rank: int = 0,
        world: int = 1,
        **options: Any,
    ) -> None:
        """`images` are files, folders or patterns, `save` some of FORMS, `options` the parser's."""
        unknown = [what for what in save if what not in FORMS]
        if unknown or not save:
            raise OrdnetError(f"--save {','.join(save)}: expected some of {', '.join(FORMS)}")
        if "probabilities" in save and options.get("protocol", "whole") != "whole":
            raise OrdnetError("probabilities come from one pass over the picture: leave --protocol at whole")
        if out.exists() and not out.is_dir():
            raise OrdnetError(f"--out {out} is a file; give a folder")
        # names are given before sharing out: all processes have to agree on them
        found = find_pictures(images, leave_out=out)
        # neighbours may lie in one shard
        self.pictures = [found[place] for place in neighbours(len(found), rank, world)]
        self.out = out
        self.save = tuple(save)
        self.strength = strength
        self.parser, self.settings = _loaded(model, options)
        self.settings["strength"] = strength

    def is_done(self, picture: Listed) -> bool:
        """Whether all files are there and were made of this picture, as it is now, with this model and these settings.

        Results of another picture that has the same name are not for us to overwrite: that is an error.
        """
        base = self.out / picture.stem
        try:
            record = json.loads(Path(f"{base}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if not isinstance(record, dict):
            return False
        made_of = record.get("picture", str(picture.path))
        if made_of != str(picture.path):
            raise OrdnetError(
                f"{picture.path}: {base}.* are results of {made_of}; choose another --out, or --force to replace them"
            )
        wanted = self._about(picture)
        # the model may have moved; its content counts
        return all(record.get(key) == value for key, value in wanted.items() if key != "model") and all(
            file_of(base, what).exists() for what in self.save
        )

    def run(self, picture: Listed, progress: Progress | None = None) -> None:
        about = self._about(picture)  # of the picture as it is before it is read
        try:
            parse = self.parser(picture.path, progress)
            parse.save(self.out, picture.stem, self.save, self.strength, about)
        except (MemoryError, RuntimeError) as error:
            # torch has a type of its own only for GPUs that are full
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise OrdnetError(
                f"{picture.path}: not enough memory; with a smaller --whole-up-to it is streamed"
            ) from None

    def merge_coco(self) -> int:
        """Write coco.json of what there is for all pictures; how many those are."""
        files = [file_of(self.out / picture.stem, "coco") for picture in self.pictures]
        there = [file for file in files if file.exists()]
        write_text(self.out / "coco.json", json.dumps(merged(there)) + "\n")
        return len(there)

    def _about(self, picture: Listed) -> dict[str, Any]:
        return {"picture": str(picture.path), **_state(picture.path), **self.settings}


class VideoPrediction:
    """The videos that one of `world` processes has to parse."""

    def __init__(
        self,
        model: str,
        videos: Sequence[str],
        out: Path,
        *,
        strength: float = 0.5,
        label_frames: bool = False,
        smoothing: float = 0.0,
        rank: int = 0,
        world: int = 1,
        **options: Any,
    ) -> None:
        if out.exists() and not out.is_dir():
            raise OrdnetError(f"--out {out} is a file; give a folder")
        stems = Counter(stem_of(video) for video in videos)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise OrdnetError(f"two videos are called {twice[0]}: give them folders of their own, with a command each")
        if smoothing and options.get("protocol", "whole") != "whole":
            raise OrdnetError("--smooth needs probabilities, which come from one pass: leave --protocol at whole")
        self.videos = list(videos)[rank::world]
        self.out = out
        self.parser, self.settings = _loaded(model, options)
        self.settings |= {"strength": strength, "smoothing": smoothing, "label_frames": label_frames}

    def is_done(self, video: str) -> bool:
        """Whether the video, as it is now, was parsed with this model and these settings."""
        base = self.out / stem_of(video)
        try:
            record = json.loads(Path(f"{base}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        wanted = self._about(video)
        return all(record.get(key) == value for key, value in wanted.items() if key != "model") and all(
            Path(f"{base}.{what}").exists() for what in ("overlay.mp4", "areas.csv")
        )

    def run(self, video: str, tell: OnFrame = lambda done, total, rate: None) -> dict[str, Any]:
        strength, smoothing = self.settings["strength"], self.settings["smoothing"]
        return predict_video(
            self.parser, video, self.out, strength=strength, label_frames=self.settings["label_frames"],
            smoothing=smoothing, about=self._about(video), tell=tell,
        )  # fmt: skip

    def _about(self, video: str) -> dict[str, Any]:
        path = Path(video)
        if not path.is_file() and not is_endless(video):
            raise OrdnetError(f"no video at {video}")
        return {"video": video, **(_state(path) if path.is_file() else {}), **self.settings}


def _loaded(model: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The parser, and what says whether a later call has the same."""
    file = find(model)
    parser = load(file, **options)
    return parser, {
        "model": str(model),
        "model_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "protocol": parser.protocol,
        "long_side": parser.long_side,
    }


def _state(path: Path) -> dict[str, int]:
    """The file as it is now."""
    found = stamp(path)
    if found is None:
        raise OrdnetError(f"{path} cannot be read: it is gone, or no file")
    return {"bytes": found[0], "modified": found[1]}
