"""MNIST and CIFAR-10: real files, in small, there or downloaded; synthetic ones; which of them a run gets."""

import gzip
import hashlib
import io
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, MNIST

from amptui.base.errors import DataError
from amptui.data import vision
from amptui.data.sources import Data, DataRequest, Progress
from amptui.data.vision import synthetic_images

Watch = Callable[..., Any]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass
class Small:
    """One of the two sets with few samples; paths are below the folder of all data sets."""

    load: Callable[..., Data]
    files: dict[str, bytes]
    archives: dict[str, bytes]
    images: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    labels: tuple[list[int], list[int]]


def small_mnist(monkeypatch: pytest.MonkeyPatch, mirrors: list[str]) -> Small:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 10, shape, np.uint8) for shape in ((6, 2, 3), (6,), (4, 2, 3), (4,))]
    files = {}
    for name, array in zip(vision.MNIST_MD5, arrays, strict=True):
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
        files[name] = header + array.tobytes()
    archives = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
    monkeypatch.setattr(vision, "MNIST_MD5", {name: md5(content) for name, content in files.items()})
    monkeypatch.setattr(MNIST, "resources", [(name, md5(content)) for name, content in archives.items()])
    monkeypatch.setattr(MNIST, "mirrors", mirrors)
    images, labels = arrays[::2], arrays[1::2]
    return Small(
        vision.mnist,
        {f"{vision.MNIST_FOLDER}/{name}": content for name, content in files.items()},
        {f"{vision.MNIST_FOLDER}/{name}": content for name, content in archives.items()},
        (images[0][:, None], images[1][:, None]),
        (labels[0].tolist(), labels[1].tolist()),
    )


def small_cifar10(monkeypatch: pytest.MonkeyPatch, mirrors: list[str]) -> Small:
    rng = np.random.default_rng(0)
    samples = {"data_batch_1": 4, "data_batch_2": 3, "test_batch": 2}
    images = {name: rng.integers(0, 256, (count, 3072), np.uint8) for name, count in samples.items()}
    labels = {name: rng.integers(0, 10, count).tolist() for name, count in samples.items()}
    contents = {name: pickle.dumps({"data": images[name], "labels": labels[name]}) for name in samples}
    contents["batches.meta"] = pickle.dumps({"label_names": list("0123456789")})
    files = {f"{CIFAR10.base_folder}/{name}": content for name, content in contents.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    checksums = [[name, md5(content)] for name, content in contents.items()]
    monkeypatch.setattr(CIFAR10, "train_list", checksums[:2])
    monkeypatch.setattr(CIFAR10, "test_list", checksums[2:3])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": checksums[3][1]})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(buffer.getvalue()))
    monkeypatch.setattr(CIFAR10, "url", mirrors[0] + CIFAR10.filename)
    train, test = np.concatenate([images["data_batch_1"], images["data_batch_2"]]), images["test_batch"]
    return Small(
        vision.cifar10,
        files,
        {CIFAR10.filename: buffer.getvalue()},
        (train.reshape(-1, 3, 32, 32), test.reshape(-1, 3, 32, 32)),
        (labels["data_batch_1"] + labels["data_batch_2"], labels["test_batch"]),
    )


BOTH_SETS = pytest.mark.parametrize("small", [small_mnist, small_cifar10], ids=["mnist", "cifar10"])


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# ------------------------------------------------------------------------------------ real files


@BOTH_SETS
@pytest.mark.parametrize("place", ["files", "archives", "mirror"])
def test_a_set_is_read_from_files_archives_or_a_mirror_alike(
    web: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch, small: Any, place: str, capfd: Any
) -> None:
    given = small(monkeypatch, [web.url])
    watched = watch("real")
    folder = watched.request.data_dir
    there = {} if place == "mirror" else getattr(given, place)
    if place == "archives":  # compressed by somebody else
        there = {path: gzip.compress(gzip.decompress(each), 1) for path, each in there.items()}
    write(folder, there)
    for path, content in given.archives.items():
        web.serve(Path(path).name, content)
    for _ in range(2):
        data = given.load(watched.request)
        sets = zip((data.train, data.validation), given.images, given.labels, strict=True)
        for arrays, images, labels in sets:
            assert torch.equal(arrays.inputs, torch.from_numpy(images))
            assert arrays.inputs.is_contiguous()
            assert (arrays.targets.dtype, arrays.targets.tolist()) == (torch.int64, labels)
    assert web.asked == ([Path(path).name for path in given.archives] if place == "mirror" else [])
    assert read(folder) == given.files | there
    assert capfd.readouterr() == ("", "")
    for path, content in given.archives.items() if place == "mirror" else ():
        done = Progress(f"downloading {Path(path).name}", len(content), len(content), "bytes")
        assert done in watched.reports


@pytest.mark.parametrize("kind", ["files", "archives"])
@pytest.mark.parametrize(
    ("small", "damage"),
    [
        (small_mnist, lambda content: content[: len(content) // 2]),
        (small_cifar10, lambda content: content.replace(content[20:24], b"oops")),
        (small_cifar10, lambda _: b""),
    ],
    ids=["cut short", "other bytes", "empty"],
)
def test_a_damaged_file_is_named_and_left_alone(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, small: Any, kind: str, damage: Any
) -> None:
    given = small(monkeypatch, ["http://127.0.0.1:9/"])
    request = watch("real").request
    contents = dict(getattr(given, kind))
    name = list(contents)[-1]
    contents[name] = damage(contents[name])
    write(request.data_dir, contents)
    with pytest.raises(DataError, match=rf"{name} is corrupt: .*{vision.DOWNLOAD_AGAIN}"):
        given.load(request)
    assert read(request.data_dir) == contents


FIRST = "train-images-idx3-ubyte.gz"

SILENT = "timed out|no answer|stalled"


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (lambda web: web.serve(FIRST, b"?" * 1000), "sent 1,000 bytes with a wrong checksum"),
        (lambda web: web.serve(FIRST, b"?" * 10, length=100), "sent 10 bytes with a wrong checksum"),
        (lambda web: None, "HTTP 404 Not Found"),
        (lambda web: web.stall(FIRST), SILENT),
        (lambda web: web.stall(FIRST, b"some"), SILENT),
    ],
    ids=["other", "shorter", "missing", "silent", "stalls"],
)
def test_a_mirror_without_the_file_is_refused_in_one_line(
    web: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Any], object], said: str
) -> None:
    given = small_mnist(monkeypatch, [web.url])
    for limit in ("ANSWER_SECONDS", "STALL_SECONDS"):
        monkeypatch.setattr(vision, limit, 0.4 if said == SILENT else 30.0)
    serve(web)
    request = watch("real").request
    with pytest.raises(DataError, match=rf"cannot download {FIRST} .*({said})") as raised:
        given.load(request)
    assert "\n" not in str(raised.value)
    assert list(request.data_dir.iterdir()) == []


@pytest.mark.parametrize("silent", [False, True])
def test_a_good_mirror_makes_up_for_a_bad_one(
    silent: bool, web: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_mnist(monkeypatch, [f"{web.url}nowhere/", web.url])
    if silent:
        monkeypatch.setattr(vision, "ANSWER_SECONDS", 1.0)
        web.stall(f"nowhere/{FIRST}")
    for path, content in given.archives.items():
        web.serve(Path(path).name, content)
    assert given.load(watch("real").request).real


def test_stopping_ends_a_download_and_leaves_nothing(
    web: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_mnist(monkeypatch, [web.url])
    web.stall(FIRST, b"some")
    watched = watch("auto")
    stop_at_first_byte = lambda progress: progress.done and watched.stop.set()  # noqa: E731
    request = DataRequest(
        data_dir=watched.request.data_dir, report=stop_at_first_byte, stopping=watched.stop.is_set
    )
    with pytest.raises(DataError, match="stopped"):
        given.load(request)
    assert list(request.data_dir.iterdir()) == []


# ------------------------------------------------------------------------------ real or stand-ins


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every mirror is a port of this machine where nobody listens: no test reaches the network."""
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:9/{CIFAR10.filename}")
    monkeypatch.setenv("no_proxy", "*")
    yield
    for thread in threading.enumerate():
        if thread.name == "amptui-download":
            thread.join()  # it reads the environment, also of a load that was stopped


@pytest.mark.ci
@pytest.mark.parametrize(
    ("load", "shape"), [(vision.mnist, (60_000, 1, 28, 28)), (vision.cifar10, (50_000, 3, 32, 32))]
)
def test_without_a_network_auto_falls_back_and_says_why_and_real_fails(
    watch: Watch, load: Any, shape: tuple[int, ...], offline: None
) -> None:
    watched = watch("auto")
    data = load(watched.request)
    assert (data.name, data.real) == ("synthetic images", False)
    assert (data.train.inputs.shape, data.validation.inputs.shape) == (shape, (10_000, *shape[1:]))
    assert not (data.validation.inputs[0] == data.train.inputs[0]).all()
    (warning,) = watched.warnings
    assert warning.startswith("training on synthetic images instead of ")
    assert "cannot download" in warning
    assert "\n" not in warning
    assert watched.reports[-1] == Progress("generating synthetic images", 10_000, 10_000, "samples")
    with pytest.raises(DataError, match=r"cannot download .*or use --data synthetic$"):
        load(watch("real").request)


@pytest.mark.parametrize("kind", ["auto", "real", "synthetic"])
def test_stopping_ends_the_work_without_a_fallback(watch: Watch, kind: str, offline: None) -> None:
    watched = watch(kind)
    watched.stop.set()
    with pytest.raises(DataError, match="stopped"):
        vision.mnist(watched.request)
    assert watched.warnings == []
    assert kind != "synthetic" or not watched.request.data_dir.exists()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=["mnist", "cifar10"])
def test_a_seed_always_draws_the_same_images_and_no_two_are_alike(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    one, again, other = (synthetic_images(2000, shape, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (one[0].shape, one[0].dtype) == ((2000, *shape), torch.uint8)
    assert (one[1].shape, one[1].dtype) == ((2000,), torch.int64)
    assert all(map(torch.equal, one, again))
    assert len(torch.unique(torch.cat([one[0], other[0]]).flatten(1), dim=0)) == 4000
