"""CIFAR-10's files, in small: pickles as numpy 1 wrote them under Python 2, loose and in their archive."""

import hashlib
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from amptui.base.errors import DataError
from amptui.data.cifar import read_cifar10
from amptui.data.download import DOWNLOAD_AGAIN
from amptui.data.sources import Progress

Watch = Callable[..., Any]


def pickled(images: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """The batch as the original files are written: protocol 2, byte strings, integers for dtype's flags."""

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


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def archived(contents: dict[str, bytes], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"readme.html": b"hello", **contents}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def small_set(mirror: str = "http://127.0.0.1:9/") -> tuple[type[CIFAR10], dict[str, bytes], bytes]:
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


def test_batches_are_joined_in_order_from_folder_and_archive_alike(watch: Watch) -> None:
    small, contents, archive = small_set()
    request = watch().request
    request.data_dir.mkdir()
    (request.data_dir / "small.tar.gz").write_bytes(archive)
    from_archive = read_cifar10(request, small)
    lay_out(request.data_dir / "small", contents)
    (request.data_dir / "small.tar.gz").unlink()
    from_folder = read_cifar10(request, small)
    for ours, theirs, samples in zip(from_archive, from_folder, (7, 2), strict=True):
        assert ours.inputs.shape == (samples, 3, 32, 32)
        assert ours.inputs.dtype == torch.uint8
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)
    rng = np.random.default_rng(0)
    second = rng.integers(0, 256, (3, 3072), np.uint8)
    assert from_folder[0].inputs[4:].flatten(1).tolist() == second.tolist()
    assert from_folder[0].targets[4:].tolist() == rng.integers(0, 10, 3).tolist()


def test_the_archive_is_downloaded_if_nothing_is_there(web: Any, watch: Watch) -> None:
    small, _, archive = small_set(web.url)
    web.serve("small.tar.gz", archive)
    watched = watch()
    train, _ = read_cifar10(watched.request, small)
    read_cifar10(watched.request, small)
    assert len(train) == 7
    assert web.asked == ["small.tar.gz"]
    assert Progress("unpacking small.tar.gz") in watched.reports


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\x80" + content])
def test_a_damaged_batch_is_named_and_never_unpickled(watch: Watch, damage: Callable[[bytes], bytes]) -> None:
    small, contents, _ = small_set()
    request = watch().request
    lay_out(request.data_dir / "small", contents | {"batch_2": damage(contents["batch_2"])})
    with pytest.raises(DataError, match=rf"small/batch_2 is corrupt.*{DOWNLOAD_AGAIN}"):
        read_cifar10(request, small)


@pytest.mark.parametrize("keep", [0, 40, 2000])
def test_a_truncated_archive_is_named(watch: Watch, keep: int) -> None:
    small, _, archive = small_set()
    request = watch().request
    request.data_dir.mkdir()
    (request.data_dir / "small.tar.gz").write_bytes(archive[:keep])
    with pytest.raises(DataError, match=r"small\.tar\.gz is corrupt"):
        read_cifar10(request, small)


def test_an_archive_without_one_of_its_batches_is_named(watch: Watch) -> None:
    small, contents, _ = small_set()
    request = watch().request
    request.data_dir.mkdir()
    del contents["test"]
    (request.data_dir / "small.tar.gz").write_bytes(archived(contents, "small"))
    with pytest.raises(DataError, match=r"small\.tar\.gz is corrupt \(test is missing\)"):
        read_cifar10(request, small)
