"""MNIST and CIFAR-10: real files, in small; their stand-ins; which of them a run gets, with the reason."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.datasets import CIFAR10, MNIST

from amptui.base.errors import DataError
from amptui.data import vision
from amptui.data.cifar import read_cifar10
from amptui.data.download import DOWNLOAD_AGAIN
from amptui.data.mnist import FOLDER, IdxFile, read_mnist
from amptui.data.sources import Progress
from amptui.data.synthetic import synthetic_images

Watch = Callable[..., Any]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


# ------------------------------------------------------------------------------------------- MNIST


def small_mnist() -> tuple[list[IdxFile], dict[str, bytes]]:
    """A set of 6 and 4 images of 2x3 pixels, and the contents of its files."""
    rng = np.random.default_rng(0)
    contents, files = {}, []
    shapes = {"train-images": (6, 2, 3), "train-labels": (6,), "t10k-images": (4, 2, 3), "t10k-labels": (4,)}
    for name, shape in shapes.items():
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + len(shape), *shape))
        contents[name] = header + rng.integers(0, 10, shape, np.uint8).tobytes()
        files.append(IdxFile(name, shape, md5(contents[name])))
    return files, contents


@pytest.fixture
def laid_out(watch: Watch) -> tuple[Any, list[IdxFile], Path]:
    """A request with the small set in its folder, the set and the folder."""
    files, contents = small_mnist()
    request = watch().request
    folder = request.data_dir / FOLDER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return request, files, folder


def test_mnist_is_read_as_it_lies_in_its_files_packed_or_not(laid_out: Any) -> None:
    request, files, folder = laid_out
    train, validation = read_mnist(request, files)
    assert (train.inputs.shape, train.inputs.dtype) == ((6, 1, 2, 3), torch.uint8)
    assert bytes(train.inputs.flatten().tolist()) == (folder / "train-images").read_bytes()[16:]
    assert train.targets.dtype == torch.int64
    assert validation.targets.tolist() == list((folder / "t10k-labels").read_bytes()[8:])
    for file in files:
        content = (folder / file.name).read_bytes()
        (folder / file.name).unlink()
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(content, compresslevel=1))
    unpacked = read_mnist(request, files)
    assert torch.equal(unpacked[0].inputs, train.inputs)
    assert torch.equal(unpacked[1].targets, validation.targets)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("train-images", lambda content: content[:-1], "bytes instead of [0-9]+"),
        ("train-images", lambda content: content[:-1] + b"!", "wrong checksum"),
        ("t10k-labels", lambda _content: b"", "corrupt: 0 bytes"),
    ],
    ids=["truncated", "other pixels", "empty"],
)
def test_a_damaged_file_is_named_and_left_alone(
    laid_out: Any, name: str, damage: Callable[[bytes], bytes], said: str
) -> None:
    request, files, folder = laid_out
    path = folder / name
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match=said) as raised:
        read_mnist(request, files)
    assert str(raised.value).startswith(str(path))
    assert DOWNLOAD_AGAIN in raised.value.hint
    assert path.read_bytes() == damaged
    assert sorted(folder.iterdir()) == before


def test_missing_files_are_downloaded_once(web: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    files, contents = small_mnist()
    resources = [(f"{name}.gz", md5(packed(content))) for name, content in contents.items()]
    monkeypatch.setattr(MNIST, "mirrors", [web.url])
    monkeypatch.setattr(MNIST, "resources", resources)
    request = watch().request
    with pytest.raises(DataError, match=r"cannot download train-images\.gz"):
        read_mnist(request, files)
    for name, content in contents.items():
        web.serve(f"{name}.gz", packed(content))
    web.asked.clear()
    first, _ = read_mnist(request, files)
    second, _ = read_mnist(request, files)
    assert torch.equal(first.inputs, second.inputs)
    assert web.asked == [f"{name}.gz" for name in contents]
    assert sorted(path.name for path in (request.data_dir / FOLDER).iterdir()) == sorted(web.asked)


# ---------------------------------------------------------------------------------------- CIFAR-10


def pickled(images: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """A batch as numpy 1 wrote the original files: protocol 2, byte strings, integers for dtype's flags."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def long_text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    shape = b"".join(b"J" + struct.pack("<i", n) for n in images.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + long_text(images.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def archived(contents: dict[str, bytes], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"readme.html": b"hello", **contents}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def small_cifar(mirror: str = "http://127.0.0.1:9/") -> tuple[type[CIFAR10], dict[str, bytes], bytes]:
    """A set of two training batches and one to validate, its files, and its archive."""
    rng = np.random.default_rng(0)
    contents = {
        name: pickled(rng.integers(0, 256, (samples, 3072), np.uint8), rng.integers(0, 10, samples).tolist())
        for name, samples in (("batch_2", 3), ("test", 2), ("batch_1", 4))
    }
    archive = archived(contents, "small")

    class Small(CIFAR10):  # type: ignore[misc]
        base_folder, filename = "small", "small.tar.gz"
        url, tgz_md5 = f"{mirror}small.tar.gz", md5(archive)
        train_list = tuple((name, md5(contents[name])) for name in ("batch_1", "batch_2"))
        test_list = (("test", md5(contents["test"])),)

    return Small, contents, archive


def lay_out(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def test_cifar_s_batches_are_joined_in_order_from_folder_and_archive_alike(watch: Watch) -> None:
    small, contents, archive = small_cifar()
    request = watch().request
    request.data_dir.mkdir()
    (request.data_dir / "small.tar.gz").write_bytes(archive)
    from_archive = read_cifar10(request, small)
    lay_out(request.data_dir / "small", contents)
    (request.data_dir / "small.tar.gz").unlink()
    from_folder = read_cifar10(request, small)
    for ours, theirs, samples in zip(from_archive, from_folder, (7, 2), strict=True):
        assert (ours.inputs.shape, ours.inputs.dtype) == ((samples, 3, 32, 32), torch.uint8)
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)
    rng = np.random.default_rng(0)
    second = rng.integers(0, 256, (3, 3072), np.uint8)
    assert from_folder[0].inputs[4:].flatten(1).tolist() == second.tolist()
    assert from_folder[0].targets[4:].tolist() == rng.integers(0, 10, 3).tolist()


def test_cifar_s_archive_is_downloaded_if_nothing_is_there(web: Any, watch: Watch) -> None:
    small, _, archive = small_cifar(web.url)
    web.serve("small.tar.gz", archive)
    watched = watch()
    train, _ = read_cifar10(watched.request, small)
    read_cifar10(watched.request, small)
    assert len(train) == 7
    assert web.asked == ["small.tar.gz"]
    assert Progress("unpacking small.tar.gz") in watched.reports


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\x80" + content])
def test_a_damaged_batch_is_named_and_never_unpickled(watch: Watch, damage: Callable[[bytes], bytes]) -> None:
    small, contents, _ = small_cifar()
    request = watch().request
    lay_out(request.data_dir / "small", contents | {"batch_2": damage(contents["batch_2"])})
    with pytest.raises(DataError, match=rf"small/batch_2 is corrupt.*{DOWNLOAD_AGAIN}"):
        read_cifar10(request, small)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda archive, _: archive[:40], ""),
        (
            lambda _, contents: archived({name: contents[name] for name in ("batch_2", "batch_1")}, "small"),
            r" \(test is missing\)",
        ),
    ],
)
def test_a_damaged_archive_is_named(watch: Watch, spoil: Any, said: str) -> None:
    small, contents, archive = small_cifar()
    request = watch().request
    request.data_dir.mkdir()
    (request.data_dir / "small.tar.gz").write_bytes(spoil(archive, contents))
    with pytest.raises(DataError, match=rf"small\.tar\.gz is corrupt{said}"):
        read_cifar10(request, small)


# ------------------------------------------------------------------------------ real or stand-ins


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every address leads to a proxy that is not there: no test reaches the network."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    yield
    for thread in threading.enumerate():
        if thread.name == "amptui-download":
            thread.join()  # it reads the environment, also of a load that was stopped


@pytest.mark.ci
@pytest.mark.parametrize(
    ("load", "shape"), [(vision.mnist, (60_000, 1, 28, 28)), (vision.cifar10, (50_000, 3, 32, 32))]
)
def test_without_a_network_auto_falls_back_at_once_and_says_why(
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


@pytest.mark.parametrize("load", [vision.mnist, vision.cifar10])
def test_real_is_never_replaced(watch: Watch, load: Any, offline: None) -> None:
    with pytest.raises(DataError, match=r"cannot download .*or use --data synthetic$"):
        load(watch("real").request)


def test_synthetic_touches_no_file_and_warns_of_nothing(watch: Watch, few_images: None) -> None:
    watched = watch("synthetic")
    assert not vision.mnist(watched.request).real
    assert watched.warnings == []
    assert not watched.request.data_dir.exists()


@pytest.mark.parametrize("kind", ["auto", "real", "synthetic"])
def test_stopping_ends_the_work_without_a_fallback(watch: Watch, kind: str, offline: None) -> None:
    watched = watch(kind)
    watched.stop.set()
    with pytest.raises(DataError, match="stopped"):
        vision.mnist(watched.request)
    assert watched.warnings == []


# ---------------------------------------------------------------------------------------- stand-ins

SAMPLES = 5000
SEED, OTHER_SEED = 1, 2

LIKE_MNIST, LIKE_CIFAR10 = (1, 28, 28), (3, 32, 32)
BOTH = pytest.mark.parametrize("shape", [LIKE_MNIST, LIKE_CIFAR10], ids=["mnist", "cifar10"])

Shape = tuple[int, int, int]


@cache
def drawn(shape: Shape, seed: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    return synthetic_images(samples, shape, seed=seed, inverted=shape == LIKE_CIFAR10)


@BOTH
def test_a_seed_always_draws_the_same_and_leaves_the_global_random_state_alone(shape: Shape) -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    images, labels = drawn.__wrapped__(shape, SEED)
    assert torch.equal(torch.get_rng_state(), before)
    assert (images.shape, images.dtype) == ((SAMPLES, *shape), torch.uint8)
    assert (labels.shape, labels.dtype) == ((SAMPLES,), torch.int64)
    assert all(map(torch.equal, drawn(shape, SEED), (images, labels)))
    assert not any(map(torch.equal, drawn(shape, OTHER_SEED), (images, labels)))


@BOTH
def test_no_two_images_are_alike_not_even_across_seeds(shape: Shape) -> None:
    images = torch.cat([drawn(shape, seed)[0] for seed in (SEED, OTHER_SEED)])
    assert len(torch.unique(images.flatten(1), dim=0)) == 2 * SAMPLES


def test_white_on_black_or_on_grey_half_of_it_negative() -> None:
    """Of negatives a linear model learns little: each class has as many channels of either sign."""
    black, _ = drawn(LIKE_MNIST, SEED)
    grey, labels = drawn(LIKE_CIFAR10, SEED)
    assert black.eq(0).float().mean() > 0.4
    assert abs(grey.float().mean() - 127.5) < 2
    for images in (grey[labels == label].float() for label in range(10)):
        # The mean image of a class is nearly plain, though each image has a pattern.
        assert images.mean(0).std() < 0.2 * images.std()


def test_a_class_has_patterns_of_its_own_that_every_seed_draws() -> None:
    """The nearest of the first images is one of the same class far more often than one in ten."""
    (images, labels), (unseen, their_labels) = drawn(LIKE_MNIST, SEED), drawn(LIKE_MNIST, OTHER_SEED, 200)
    coarse, unseen_coarse = (
        functional.normalize(functional.avg_pool2d(each.float(), 4).flatten(1)) for each in (images, unseen)
    )
    nearest = (unseen_coarse @ coarse.T).argmax(1)
    assert (labels[nearest] == their_labels).float().mean() > 0.6
