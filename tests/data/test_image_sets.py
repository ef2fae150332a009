"""MNIST and CIFAR-10: real files, in small, unpacked or not; synthetic ones; which of them a run gets."""

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
from amptui.data.sources import Data
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


def small_mnist(monkeypatch: pytest.MonkeyPatch) -> Small:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 10, shape, np.uint8) for shape in ((6, 2, 3), (6,), (4, 2, 3), (4,))]
    files = {}
    for (name, _), array in zip(MNIST.resources, arrays, strict=True):
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
        files[name.removesuffix(".gz")] = header + array.tobytes()
    archives = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
    monkeypatch.setattr(MNIST, "resources", [(name, md5(content)) for name, content in archives.items()])
    images, labels = arrays[::2], arrays[1::2]
    return Small(
        vision.mnist,
        {f"{vision.MNIST_FOLDER}/{name}": content for name, content in files.items()},
        {f"{vision.MNIST_FOLDER}/{name}": content for name, content in archives.items()},
        (images[0][:, None], images[1][:, None]),
        (labels[0].tolist(), labels[1].tolist()),
    )


def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> Small:
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


# ------------------------------------------------------------------------------------ real files


@BOTH_SETS
@pytest.mark.parametrize("place", ["files", "archives"])
def test_a_set_is_read_from_files_or_archives_alike(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, small: Any, place: str, capfd: Any
) -> None:
    given, watched = small(monkeypatch), watch("real")
    write(watched.request.data_dir, getattr(given, place))
    for _ in range(2):
        data = given.load(watched.request)
        sets = zip((data.train, data.validation), given.images, given.labels, strict=True)
        for arrays, images, labels in sets:
            assert torch.equal(arrays.inputs, torch.from_numpy(images))
            assert arrays.inputs.is_contiguous()
            assert (arrays.targets.dtype, arrays.targets.tolist()) == (torch.int64, labels)
    assert capfd.readouterr() == ("", "")
    if place == "archives":  # torchvision unpacks them where it would download them
        assert watched.reports[0][0].startswith("downloading ")


def test_a_damaged_file_is_told(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    given, request = small_mnist(monkeypatch), watch("real").request
    contents = {path: content[: len(content) // 2] for path, content in given.files.items()}
    write(request.data_dir, contents)
    with pytest.raises(DataError, match=r"MNIST in \S*/MNIST/raw is damaged; delete it to download it"):
        given.load(request)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("is_silent", "said"), [(True, "nothing came for 0.4 s"), (False, "<urlopen error no network>")]
)
def test_a_download_that_fails_is_told_in_one_line(
    is_silent: bool, said: str, watch: Watch, monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    def download(_self: object) -> None:
        if is_silent:
            end.wait(60)
        raise RuntimeError(
            "Error downloading a.gz:\nTried https://a.org/, got:\n<urlopen error no network>\n"
        )

    monkeypatch.setattr(vision, "SILENT_SECONDS", 0.4)
    monkeypatch.setattr(MNIST, "download", download)
    with pytest.raises(DataError, match=f"cannot download MNIST: {said}; copy its files to ") as raised:
        vision.mnist(watch("real").request)
    assert "\n" not in str(raised.value)


def test_stopping_ends_a_download(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    watched = watch("auto")
    monkeypatch.setattr(MNIST, "download", lambda _self: (watched.stop.set(), end.wait(60)))
    with pytest.raises(DataError, match="stopped"):
        vision.mnist(watched.request)


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
    assert watched.reports[-1] == ("generating synthetic images", 10_000, 10_000, "samples")
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
