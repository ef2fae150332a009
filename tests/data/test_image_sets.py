"""MNIST and CIFAR-10: real files, in small, unpacked or not; synthetic ones; which of them a run gets."""

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, MNIST

from amptui.base.errors import DataError
from amptui.data import vision
from amptui.data.vision import synthetic_images

Watch = Callable[..., Any]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """MNIST with few samples; paths are below the folder of all data sets."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 10, shape, np.uint8) for shape in ((6, 2, 3), (6,), (4, 2, 3), (4,))]
    files = {}
    for (name, _), array in zip(MNIST.resources, arrays, strict=True):
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
        files[name.removesuffix(".gz")] = header + array.tobytes()
    archives = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
    monkeypatch.setattr(MNIST, "resources", [(name, md5(content)) for name, content in archives.items()])
    return SimpleNamespace(
        files={f"{vision.MNIST_FOLDER}/{name}": content for name, content in files.items()},
        archives={f"{vision.MNIST_FOLDER}/{name}": content for name, content in archives.items()},
        images=arrays[::2],
        labels=arrays[1::2],
    )


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


# ------------------------------------------------------------------------------------ real files


@pytest.mark.parametrize("place", ["files", "archives"])
def test_mnist_is_read_from_files_or_archives_alike(
    watch: Watch, small_mnist: SimpleNamespace, place: str, capfd: Any
) -> None:
    watched = watch("real")
    write(watched.request.data_dir, getattr(small_mnist, place))
    for _ in range(2):
        data: Any = vision.mnist(watched.request)
        sets = zip((data.train, data.validation), small_mnist.images, small_mnist.labels, strict=True)
        for arrays, images, labels in sets:
            assert torch.equal(arrays.inputs, torch.from_numpy(images[:, None]))
            assert (arrays.targets.dtype, arrays.targets.tolist()) == (torch.int64, labels.tolist())
    assert capfd.readouterr() == ("", "")
    if place == "archives":  # torchvision unpacks them where it would download them
        assert watched.reports[0][0].startswith("downloading ")


def test_cifar10_has_its_channels_first(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8), [3, 1, 2, 0]
    read = [SimpleNamespace(data=pixels, targets=labels)] * 2
    monkeypatch.setattr(vision, "_of_torchvision", lambda *_: read)
    data: Any = vision.cifar10(watch("real").request)
    for arrays in (data.train, data.validation):
        assert arrays.inputs.is_contiguous()
        assert torch.equal(arrays.inputs[..., 5, 7], torch.from_numpy(pixels[:, 5, 7]))
        assert (arrays.targets.dtype, arrays.targets.tolist()) == (torch.int64, labels)


def test_a_damaged_file_is_told(watch: Watch, small_mnist: SimpleNamespace) -> None:
    request = watch("real").request
    contents = {path: content[: len(content) // 2] for path, content in small_mnist.files.items()}
    write(request.data_dir, contents)
    with pytest.raises(DataError, match=r"MNIST in \S*/MNIST/raw is damaged; delete it to download it"):
        vision.mnist(request)


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
