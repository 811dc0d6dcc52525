"""The server under everything at once, for minutes: honest, huge, tiny, hostile, slow and idle clients on this machine.

Three processes: the server, one with the clients, and this one, which asks for health and looks at the server's memory.
"""

import io
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.bench.measure import Measurement
from ordnet.bench.serve import Server, form, health, row, sample_jpeg, serving, timed
from ordnet.errors import OrdnetError
from ordnet.progress import progress

FIRST = 60.0
"""Seconds after which memory is first measured: by then everything has been used once."""
_PAUSE = 0.05
"""Seconds between two health checks."""
_SOON = 0.1
"""Seconds within which a health check should be answered, whatever goes on."""
Answer = tuple[str, int, float]
"""The kind of client, the status (0 where the connection ended without one), and the seconds."""


def soak(model: str, minutes: float, megapixels: float = 12) -> tuple[list[Measurement], list[str]]:
    """Rows by kind of client, and sentences about what was found: answers of 500, health, memory.

    `megapixels` is the size of the huge pictures.
    """
    seconds = 60 * minutes
    if seconds < 5:
        raise OrdnetError(f"--soak {minutes:g}: a tenth of a minute is the least")
    with progress() as bar, serving(model) as server:
        task = bar.add_task(f"soaking for {minutes:g} min", total=round(seconds))
        command = [sys.executable, "-m", "ordnet.bench.soak", server.address, str(seconds), str(megapixels)]
        # a file, since an unread pipe would be full after a few minutes
        with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=said) as load:
            seen = _watch(server, load, seconds, lambda passed: bar.update(task, completed=round(passed)))
            said.seek(0)
            answers: list[Answer] = [(kind, status, took) for kind, status, took in json.loads(said.read())]
        time.sleep(1)
        seen.memory.append(resident(server.process.pid))
    rows = [row("health, throughout", seen.taken), row("a pause of 50 ms, how late it ends", seen.late)]
    for kind in sorted({kind for kind, _, _ in answers}):
        mine = [(status, took) for name, status, took in answers if name == kind]
        statuses = ", ".join(
            f"{status or 'ended'}: {count:,}" for status, count in sorted(Counter(s for s, _ in mine).items())
        )
        rows.append(row(kind, [took for _, took in mine], answers=statuses))
    return rows, _words(answers, seen, seconds)


@dataclass
class Watched:
    """What was seen from outside while the clients were at work; seconds and megabytes."""

    taken: list[float] = field(default_factory=list)
    """How long health took each time."""
    stolen: list[float] = field(default_factory=list)
    """What the host of this virtual computer took away from it meanwhile."""
    late: list[float] = field(default_factory=list)
    """How late pauses ended: the computer was busy with others, and no server could have answered."""
    memory: list[float] = field(default_factory=list)
    """Of the server, after the first minute and at the end."""


def _watch(server: Server, load: "subprocess.Popen[bytes]", seconds: float, tell: Callable[[float], object]) -> Watched:
    start, seen = time.monotonic(), Watched()
    first = min(FIRST, seconds / 5)
    while load.poll() is None:
        before = _stolen()
        seen.taken.append(timed(lambda: health(server.address)))
        seen.stolen.append(_stolen() - before)
        passed = time.monotonic() - start
        if not seen.memory and passed > first:
            seen.memory.append(resident(server.process.pid))
        tell(min(passed, seconds))
        seen.late.append(max(0.0, timed(lambda: time.sleep(_PAUSE)) - _PAUSE))
    if not seen.memory:
        seen.memory.append(resident(server.process.pid))
    return seen


def _words(answers: list[Answer], seen: Watched, seconds: float) -> list[str]:
    taken, late, memory = seen.taken, seen.late, seen.memory
    mistakes = sum(status == 500 for _, status, _ in answers)
    slow = [(took, stolen) for took, stolen in zip(taken, seen.stolen, strict=True) if took > _SOON]
    own = sum(took - stolen > _SOON for took, stolen in slow)
    middle = sorted(taken)[len(taken) // 2]
    return [
        f"{len(answers):,} answers in {seconds / 60:.3g} min, {mistakes} of them 500",
        f"health: median {1000 * middle:.1f} ms, slowest {1000 * max(taken):.0f} ms, {len(slow)} of {len(taken):,} "
        f"above {1000 * _SOON:.0f} ms ({own} also without what the computer's host took away meanwhile); pauses of "
        f"this process ended up to {1000 * max(late):.0f} ms late, {sum(each > _SOON for each in late)} of them by "
        f"more than {1000 * _SOON:.0f} ms",
        f"memory: {memory[0]:.0f} MB after {min(FIRST, seconds / 5):.0f} s, {memory[-1]:.0f} MB at the end "
        f"({memory[-1] / memory[0]:.2f}x), server and decoder together",
    ]


def _stolen() -> float:
    """Seconds that all cores together have lost to others on the same host since the start; 0 where nobody counts."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    return int(counters.read_text(encoding="ascii").split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Resident megabytes of a process and its children."""
    total = 0
    for each in (process, *_children(process)):
        for line in Path(f"/proc/{each}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1000


def _children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in path.read_text(encoding="ascii").split()] if path.exists() else []


# ---- the clients ----------------------------------------------------------------------------------------------


class Clients:
    """Every kind of client, each a loop in a thread until the end."""

    def __init__(self, address: str, seconds: float, megapixels: float) -> None:
        self.address = address
        self.end = time.monotonic() + seconds
        self.answers: list[Answer] = []
        self._count = 0
        self._picture = sample_jpeg(480, 480)
        side = round((megapixels * 1e6) ** 0.5)
        self._huge = sample_jpeg(side, side)
        self._hostile = hostile_files()

    def run(self) -> None:
        kinds = [
            self.good, self.good, self.good, self.clicks, self.tiny, self.huge, self.hostile, self.hostile, self.slow,
            self.slow, self.slow, self.idle, self.nonsense,
        ]  # fmt: skip
        threads = [threading.Thread(target=self._until_the_end, args=(kind,), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _until_the_end(self, kind: Callable[[], int]) -> None:
        while time.monotonic() < self.end:
            start = time.perf_counter()
            try:
                status = kind()
            except OSError:  # the connection was ended
                status = 0
            self.answers.append((kind.__name__, status, time.perf_counter() - start))
            if status in (0, 503):
                time.sleep(0.2)

    def _parse(self, data: bytes) -> int:
        self._count += 1  # after the end of a JPEG it is ignored, and makes it another picture
        return form(self.address, "/v1/parse", {"image": data + self._count.to_bytes(8, "big")})[0]

    def good(self) -> int:
        return self._parse(self._picture)

    def huge(self) -> int:
        return self._parse(self._huge)

    def clicks(self) -> int:
        x, y = (b"%d" % random.randrange(480) for _ in range(2))
        return form(self.address, "/v1/attention", {"image": self._picture, "x": x, "y": y})[0]

    def tiny(self) -> int:
        """Pictures of a pixel, or very thin ones, each another."""
        size = random.choice([(1, 1), (1, 1), (1, 3000), (3000, 1)])
        pixels = np.random.default_rng(self._count).integers(0, 256, (*size, 3), dtype=np.uint8)
        return self._parse(_encoded(pixels, "PNG"))

    def hostile(self) -> int:
        return form(self.address, "/v1/parse", {"image": random.choice(self._hostile)})[0]

    def slow(self) -> int:
        """A body of a byte every half second."""
        with self._connection() as connection:
            head = b"POST /v1/parse HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            connection.sendall(head + b"Content-Length: 100000\r\n\r\n--b\r\n")
            connection.settimeout(0.5)
            while time.monotonic() < self.end:
                try:
                    return int(connection.recv(100).split()[1])
                except TimeoutError:
                    connection.sendall(b"x")
        return 0

    def idle(self) -> int:
        """Twenty connections that say nothing for a while."""
        held = [self._connection() for _ in range(20)]
        time.sleep(min(5.0, max(0.0, self.end - time.monotonic())))
        for connection in held:
            connection.close()
        return 0

    def nonsense(self) -> int:
        with self._connection() as connection:
            connection.sendall(random.choice([b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n", b"A" * 40_000]))
            connection.settimeout(15)
            found = connection.recv(100).split()
            time.sleep(0.2)
        return int(found[1]) if len(found) > 1 else 0

    def _connection(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=60)


def hostile_files() -> list[bytes]:
    """Files that promise more than they hold, hold more than they promise, or are broken somewhere."""
    good = _encoded(np.zeros((48, 64, 3), np.uint8), "PNG")
    giant = bytearray(good)
    giant[16:24] = (60_000).to_bytes(4, "big") * 2
    giant[29:33] = zlib.crc32(giant[12:29]).to_bytes(4, "big")
    strips = 4_500_000
    entries = [(256, 4, 1, 1), (257, 4, 1, strips), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1),
               (273, 4, strips, 110), (278, 4, 1, 1), (279, 4, strips, 110)]  # fmt: skip
    directory = struct.pack("<H", 8) + b"".join(struct.pack("<HHII", *each) for each in entries) + b"\0" * 4
    tiff = b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 8) * strips
    comments = good_gif()[:13] + (b"\x21\xfe" + (b"\xff" + b"x" * 255) * 20_000 + b"\0")
    return [bytes(giant), tiff, comments, good[:60], b"", b"%PDF-1.7", os.urandom(5000), good[:40] + os.urandom(200)]


def good_gif() -> bytes:
    return _encoded(np.zeros((8, 8, 3), np.uint8), "GIF")


def _encoded(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


if __name__ == "__main__":
    clients = Clients(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
    clients.run()
    print(json.dumps(clients.answers))
