"""`ordnet submit`: test-set predictions for a benchmark's server."""

from pathlib import Path
from typing import Annotated

import typer


def submit(
    server: Annotated[
        str, typer.Argument(metavar="ade20k|voc|cityscapes", help="The benchmark whose server it is for.")
    ],
    model: Annotated[str, typer.Argument(help="A checkpoint (.safetensors) or the name of a shipped model.")],
    data: Annotated[str, typer.Option(help="The data set with its test pictures, such as voc:PATH.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to upload: .tar.gz or .tgz for voc, else .zip.")],
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet (the paper's).")] = "encnet",
) -> None:
    """Parse a test set as its server wants it, and check the file by reading it back."""
    from ordnet.evaluation.submission import submit as run
    from ordnet.progress import progress

    with progress() as bar:
        task = bar.add_task("pictures", total=None)
        count = run(
            server, model, data, out, protocol, lambda done, total: bar.update(task, completed=done, total=total)
        )
    typer.echo(f"wrote {out}: {count:,} predictions, protocol {protocol}, read back and checked")
