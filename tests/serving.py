"""The real server in a process of its own, and pictures to send to it."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image

import ordnet
from ordnet.model import checkpoint

NAMES = ("sky", "tree", "road", "water")
COLOURS = ((70, 130, 180), (34, 100, 34), (128, 64, 128), (0, 60, 200))


@dataclass
class Server:
    url: str
    process: subprocess.Popen
    log: Path

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(model, *options: str, files: int | None = None, **environment: str) -> Iterator[Server]:
    """`ordnet serve MODEL …` on a free port, until the block ends; with so many file descriptors."""
    command = [sys.executable, "-m", "ordnet", "serve", str(model), "--port", "0", *options]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    # freed memory leaves the process at once, so that its level can be compared
    settings = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", **environment}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **settings}
            )
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"the server did not start: {line}{log.read_text()}"
            yield Server(found[0].replace("0.0.0.0", "127.0.0.1"), process, log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()


def tiny_checkpoint(path: Path, variant: str = "ordnet") -> Path:
    torch.manual_seed(3)
    net = ordnet.build(variant, classes=len(NAMES), backbone="tiny").eval()
    checkpoint.save(path, net, NAMES, COLOURS)
    return path


def pixels(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Something smooth with a little noise, which every format can hold."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return np.clip(smooth + rng.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def raw_request(data: bytes, header: str = "A: b") -> bytes:
    """An upload as it goes over the wire, to be sent in part or left alone."""
    body = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + data + b"\r\n--b--\r\n"
    head = f"POST /v1/parse HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Length: {len(body)}\r\n"
    return (head + "Content-Type: multipart/form-data; boundary=b\r\n\r\n").encode() + body
