"""Many pictures and one model → a folder of results that can be continued later."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ordnet.data.pictures import Listed, find_pictures
from ordnet.errors import OrdnetError
from ordnet.inference.parse import FORMS, file_of
from ordnet.inference.parser import find, load
from ordnet.inference.stream import Progress


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
        self.pictures = find_pictures(images, leave_out=out)[rank::world]
        self.out = out
        self.save = tuple(save)
        self.strength = strength
        file = find(model)
        self.parser = load(file, **options)
        self.settings = {
            "model": str(model),
            "model_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "protocol": self.parser.protocol,
            "long_side": self.parser.long_side,
            "strength": strength,
        }

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

    def _about(self, picture: Listed) -> dict[str, Any]:
        try:
            state = picture.path.stat()
        except OSError as error:
            raise OrdnetError(f"{picture.path} cannot be read: {error.strerror}") from None
        return {
            "picture": str(picture.path),
            "bytes": state.st_size,
            "modified": state.st_mtime_ns,
            **self.settings,
        }
