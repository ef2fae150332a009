"""Downloads one file from the first mirror that delivers it intact, with bounded, interruptible waits.

torchvision's download knows no timeout and no stop, reports to standard error only, and writes to the final
name, where a file cut short stays and two processes meet.
"""

import hashlib
import queue
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import build_opener

from amptui.base.errors import DataError
from amptui.base.runfiles import temporary_beside
from amptui.data.sources import DataRequest, Progress

DOWNLOAD_AGAIN = "delete or rename it to download it again"
"""What to do about a corrupt file."""

_CHUNK_BYTES = 1 << 16
_STOP_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for mirrors."""

    answer_seconds: float = 5.0
    """For all mirrors together, until one answers."""
    stall_seconds: float = 15.0
    """A mirror that sends less than ``stall_bytes`` in this time is abandoned."""
    stall_bytes: int = 1 << 14


class _MirrorError(Exception):
    """A mirror did not answer, closed the connection or sent something else."""


class _OfflineError(_MirrorError):
    """Host names cannot be resolved: other mirrors would fail in the same way."""


def download(
    urls: Sequence[str], path: Path, *, md5: str, request: DataRequest, patience: Patience | None = None
) -> None:
    """Download ``path`` from the first of ``urls`` that delivers a file with this MD5 (hexadecimal).

    Uses the proxies of the environment, as urllib does. Writes to a temporary file beside ``path`` and
    renames it when it is complete: ``path`` is never an incomplete file.

    Raises ``DataError`` if no mirror delivers or if ``request.stopping()``; ``OSError`` if the file cannot be
    written.
    """
    patience = patience or Patience()
    part = temporary_beside(path)
    failures = []
    try:
        for url in urls:
            try:
                _fetch(url, part, md5, patience.answer_seconds / len(urls), patience, request)
                part.rename(path)
                return
            except _MirrorError as failure:
                failures.append(f"{urlsplit(url).netloc}: {failure}")
                if isinstance(failure, _OfflineError):
                    break
    finally:
        with suppress(OSError):  # usually it was never created or has been renamed
            part.unlink()
    what = f"cannot download {path.name} ({'; '.join(failures)})"
    raise DataError(what, hint=f"copy it to {path.parent} yourself")


def _fetch(
    url: str, part: Path, md5: str, answer_seconds: float, patience: Patience, request: DataRequest
) -> None:
    """Write what ``url`` delivers to ``part``, report progress, and verify its checksum."""
    detail = f"downloading {url.rpartition('/')[2]}"
    request.report(Progress(detail))
    received, reported, digest = 0, 0, hashlib.md5(usedforsecurity=False)
    with closing(_receive(url, answer_seconds, patience, request)) as chunks:
        _, total = next(chunks)
        # Create the folder only after the mirror has answered.
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            for chunk, _ in chunks:
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                # A hundred reports per file are enough for any screen.
                if received - reported >= (total // 100 if total else 1 << 20):
                    request.report(Progress(detail, received, total, "bytes"))
                    reported = received
    if total is not None and received < total:
        raise _MirrorError(f"closed the connection after {received:,} of {total:,} bytes")
    if digest.hexdigest() != md5:
        raise _MirrorError(f"sent {received:,} bytes with a wrong checksum")


_Item = tuple[bytes, int | None] | _MirrorError | None
"""A chunk and the file's size, if the mirror sends it; a failure; or None at the end."""


def _receive(
    url: str, answer_seconds: float, patience: Patience, request: DataRequest
) -> Generator[tuple[bytes, int | None], None, None]:
    """The file's chunks as they arrive, the first one empty, each with the file's size in bytes or None.

    A separate thread reads, so that no wait in the resolver or on a socket exceeds the limits or delays a
    user who wants to stop.
    """
    items: queue.Queue[_Item] = queue.Queue(maxsize=16)
    abandoned = threading.Event()
    # Longer than our own limits: it only makes an abandoned reader end eventually.
    timeout_seconds = max(answer_seconds, patience.stall_seconds) + 1.0
    reader = threading.Thread(
        target=_read, args=(url, timeout_seconds, items, abandoned), name="amptui-download", daemon=True
    )
    reader.start()
    received, deadline, trouble = 0, time.monotonic() + answer_seconds, "did not answer in time"
    try:
        while item := _next_item(items, deadline, trouble, request):
            if isinstance(item, _MirrorError):
                raise item
            received += len(item[0])
            if received >= patience.stall_bytes or not item[0]:
                received, deadline, trouble = 0, time.monotonic() + patience.stall_seconds, "stalled"
            yield item
    finally:
        abandoned.set()
        while not items.empty():  # the reader may wait for space in the queue; it needs one more place
            items.get_nowait()


def _next_item(items: queue.Queue[_Item], deadline: float, trouble: str, request: DataRequest) -> _Item:
    while True:
        request.raise_if_stopping()
        remaining = deadline - time.monotonic()
        try:
            # What has arrived counts, however late we come: then the disk was slow, not the mirror.
            return items.get(timeout=max(0.0, min(remaining, _STOP_POLL_SECONDS)))
        except queue.Empty:
            if remaining <= 0:
                raise _MirrorError(trouble) from None


def _read(url: str, timeout_seconds: float, items: queue.Queue[_Item], abandoned: threading.Event) -> None:
    """Pass on what ``url`` sends, until its end or until it is abandoned."""
    try:
        # A new opener reads the proxies again; urlopen would keep the first ones it saw.
        with build_opener().open(url, timeout=timeout_seconds) as response:
            total = response.length
            items.put((b"", total))
            while not abandoned.is_set() and (chunk := response.read1(_CHUNK_BYTES)):
                items.put((chunk, total))
        items.put(None)
    except HTTPError as error:
        error.close()
        items.put(_MirrorError(f"HTTP {error.code} {error.reason}"))
    except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid proxy setting
        reason = error.reason if isinstance(error, URLError) else error
        kind = _OfflineError if isinstance(reason, socket.gaierror) else _MirrorError
        words = (isinstance(reason, OSError) and reason.strerror) or reason
        items.put(kind(" ".join(str(words).split())))
