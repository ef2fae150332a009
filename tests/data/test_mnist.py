"""MNIST's files: real ones where the machine has them, and small ones of the same make everywhere."""

import gzip
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import MNIST

from amptui.base.errors import DataError
from amptui.data.download import DOWNLOAD_AGAIN
from amptui.data.mnist import FILES, FOLDER, IdxFile, read_mnist

SHARED = Path(__file__).parents[3] / "shared" / "data"
Watch = Callable[..., Any]
Laid = tuple[Any, list[IdxFile], Path]


def small_set() -> tuple[list[IdxFile], dict[str, bytes]]:
    """A set of 6 and 4 images of 2x3 pixels, and the contents of its files."""
    rng = np.random.default_rng(0)
    contents, files = {}, []
    for name, shape in (
        ("train-images", (6, 2, 3)),
        ("train-labels", (6,)),
        ("t10k-images", (4, 2, 3)),
        ("t10k-labels", (4,)),
    ):
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + len(shape), *shape))
        contents[name] = header + rng.integers(0, 10, shape, np.uint8).tobytes()
        files.append(IdxFile(name, shape, md5(contents[name])))
    return files, contents


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@pytest.fixture
def laid_out(watch: Watch) -> Laid:
    """A request with the small set in its folder, the set and the folder."""
    files, contents = small_set()
    request = watch().request
    folder = request.data_dir / FOLDER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return request, files, folder


def test_images_and_labels_are_read_as_they_lie_in_the_files(laid_out: Laid) -> None:
    request, files, folder = laid_out
    train, validation = read_mnist(request, files)
    assert train.inputs.shape == (6, 1, 2, 3)
    assert train.inputs.dtype == torch.uint8
    assert bytes(train.inputs.flatten().tolist()) == (folder / "train-images").read_bytes()[16:]
    assert train.targets.dtype == torch.int64
    assert validation.targets.tolist() == list((folder / "t10k-labels").read_bytes()[8:])


def test_packed_files_do_whoever_packed_them(laid_out: Laid) -> None:
    request, files, folder = laid_out
    expected = read_mnist(request, files)
    for file in files:
        content = (folder / file.name).read_bytes()
        (folder / file.name).unlink()
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(content, compresslevel=1))
    train, validation = read_mnist(request, files)
    assert torch.equal(train.inputs, expected[0].inputs)
    assert torch.equal(validation.targets, expected[1].targets)


@pytest.mark.parametrize("name", ["train-images", "t10k-labels"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], "bytes instead of [0-9]+"),
        (lambda content: content + b"!", "bytes instead of [0-9]+"),
        (lambda content: content[:-1] + b"!", "wrong checksum"),
        (lambda content: b"!" + content[1:], "wrong checksum"),
        (lambda _content: b"", "corrupt: 0 bytes"),
    ],
    ids=["truncated", "too long", "other pixels", "other header", "empty"],
)
def test_a_damaged_file_is_named_and_left_alone(
    laid_out: Laid, name: str, damage: Callable[[bytes], bytes], said: str
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


@pytest.mark.parametrize("keep", [0, 5, 30])
def test_a_truncated_packed_file_is_named(laid_out: Laid, keep: int) -> None:
    request, files, folder = laid_out
    content = (folder / "train-images").read_bytes()
    (folder / "train-images").unlink()
    (folder / "train-images.gz").write_bytes(packed(content)[:keep])
    with pytest.raises(DataError, match=r"train-images\.gz is"):
        read_mnist(request, files)


@pytest.fixture
def mirrored(web: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[IdxFile], dict[str, bytes]]:
    """The small set and its contents, which torchvision says are on our server."""
    files, contents = small_set()
    resources = [(f"{name}.gz", md5(packed(content))) for name, content in contents.items()]
    monkeypatch.setattr(MNIST, "mirrors", [web.url])
    monkeypatch.setattr(MNIST, "resources", resources)
    return files, contents


def test_missing_files_are_downloaded_once(web: Any, watch: Watch, mirrored: Any) -> None:
    files, contents = mirrored
    for name, content in contents.items():
        web.serve(f"{name}.gz", packed(content))
    request = watch().request
    first, _ = read_mnist(request, files)
    second, _ = read_mnist(request, files)
    assert torch.equal(first.inputs, second.inputs)
    assert web.asked == [f"{name}.gz" for name in contents]
    assert sorted(path.name for path in (request.data_dir / FOLDER).iterdir()) == sorted(web.asked)


def test_a_missing_file_that_no_mirror_has_is_an_error(watch: Watch, mirrored: Any) -> None:
    with pytest.raises(DataError, match=r"cannot download train-images\.gz"):
        read_mnist(watch().request, mirrored[0])


def test_torchvision_knows_a_checksum_of_every_packed_file() -> None:
    assert {f"{file.name}.gz" for file in FILES} == set(dict(MNIST.resources))


@pytest.mark.skipif(not SHARED.exists(), reason="the real MNIST is not on this machine")
def test_the_real_mnist_is_read_as_torchvision_reads_it(watch: Watch) -> None:
    request = watch().request
    folder = request.data_dir / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for file in FILES:
        shutil.copy(SHARED / f"{file.name}.gz", folder)
    train, validation = read_mnist(request)
    assert (train.inputs.shape, validation.inputs.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    for file in FILES:
        (folder / file.name).write_bytes(gzip.decompress((folder / f"{file.name}.gz").read_bytes()))
    for ours, theirs in (
        (train, MNIST(request.data_dir)),
        (validation, MNIST(request.data_dir, False)),
    ):
        assert torch.equal(ours.inputs[:, 0], theirs.data)
        assert torch.equal(ours.targets, theirs.targets)
