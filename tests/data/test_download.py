"""Downloads against a real server that truncates, stalls, lies and refuses."""

import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import DataError
from amptui.data.download import Patience, download
from amptui.data.sources import Progress

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
ENOUGH_SECONDS = 30.0
"""Less than a server of these tests stalls for, and more than a busy machine takes for a byte."""

Watch = Callable[..., Any]
NOT_FOUND = r"cannot download file \(127.0.0.1:\d+: HTTP 404 Not Found\)"
STALLS = Patience(answer_seconds=ENOUGH_SECONDS, stall_seconds=0.2)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_good_file_arrives_whole_with_progress(web: Any, watch: Watch, tmp_path: Path) -> None:
    watched = watch()
    path = tmp_path / "deep" / "folder" / "file.gz"
    download([web.serve("file.gz", CONTENT)], path, md5=MD5, request=watched.request)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.gz"]
    assert watched.reports[-1] == Progress("downloading file.gz", len(CONTENT), len(CONTENT), "bytes")
    done = [report.done for report in watched.reports if report.done is not None]
    assert done == sorted(done)
    assert len(done) <= 102
    of_unknown_length, url = watch(), web.serve("file", CONTENT, announces=False)
    download([url], tmp_path / "file", md5=MD5, request=of_unknown_length.request)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert {report.total for report in of_unknown_length.reports} == {None}


@pytest.mark.parametrize(
    ("serve", "said", "patience"),
    [
        (lambda web: web.serve("file", CONTENT[:-1] + b"?"), "wrong checksum", None),
        (
            lambda web: web.serve("file", CONTENT[:1000], length=len(CONTENT)),
            "closed the connection after 1,000 of 300,000 bytes",
            None,
        ),
        (lambda web: web.serve("file", b""), "wrong checksum", None),
        (lambda web: web.url + "file", NOT_FOUND, None),
        (lambda web: web.stall("file"), "did not answer in time", Patience(answer_seconds=0.4)),
        (lambda web: web.stall("file", b"some"), "stalled", STALLS),
    ],
    ids=["other", "shorter", "empty", "missing", "silent", "stalls"],
)
def test_a_mirror_without_the_file_is_refused_in_one_line(
    web: Any,
    watch: Watch,
    tmp_path: Path,
    serve: Callable[[Any], str],
    said: str,
    patience: Patience | None,
) -> None:
    how = {} if patience is None else {"patience": patience}
    with pytest.raises(DataError, match=said) as raised:
        download([serve(web)], tmp_path / "new" / "file", md5=MD5, request=watch().request, **how)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    # A folder is made only when there is something to put in it.
    assert names(tmp_path) == ([] if said in ("did not answer in time", NOT_FOUND) else ["new"])
    assert "\n" not in str(raised.value)


def test_a_good_mirror_makes_up_for_bad_ones(web: Any, watch: Watch, tmp_path: Path) -> None:
    bad = [web.url + "nowhere", web.serve("wrong", b"wrong"), web.serve("short", b"s", length=2)]
    good = web.serve("good", CONTENT)
    patience = Patience(answer_seconds=4 * ENOUGH_SECONDS)  # for all four: none of them is slow
    download([*bad, good], tmp_path / "file", md5=MD5, request=watch().request, patience=patience)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert web.asked == ["nowhere", "wrong", "short", "good"]


def test_stopping_ends_the_wait_and_leaves_nothing(web: Any, watch: Watch, tmp_path: Path) -> None:
    watched, url = watch(), web.stall("file", CONTENT)
    timer = threading.Timer(0.2, watched.stop.set)
    timer.start()
    with pytest.raises(DataError, match="stopped"):
        download([url], tmp_path / "file", md5=MD5, request=watched.request)
    timer.join()
    assert names(tmp_path) == []


def test_a_proxy_from_the_environment_is_used(
    web: Any, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://mirror.invalid/file"
    monkeypatch.setenv("http_proxy", web.url)
    web.serve(url, CONTENT)
    download([url], tmp_path / "file", md5=MD5, request=watch().request)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert web.asked == [url]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:port")
    with pytest.raises(DataError, match="cannot download"):
        download([url], tmp_path / "file", md5=MD5, request=watch().request)
