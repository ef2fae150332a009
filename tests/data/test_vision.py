"""Which data a run gets: real, synthetic, or a fallback that says why."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from amptui.base.errors import DataError
from amptui.data import vision
from amptui.data.sources import Arrays, Data, Progress

Watch = Callable[..., Any]
SETS = [
    pytest.param(vision.mnist, (60_000, 1, 28, 28), id="mnist"),
    pytest.param(vision.cifar10, (50_000, 3, 32, 32), id="cifar10"),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address leads to a proxy that is not there: no test reaches the network."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)


def assert_synthetic(data: Data, shape: tuple[int, ...]) -> None:
    assert (data.name, data.real) == ("synthetic images", False)
    assert isinstance(data.train, Arrays)
    assert isinstance(data.validation, Arrays)
    assert data.train.inputs.shape == shape
    assert data.validation.inputs.shape == (10_000, *shape[1:])
    assert not (data.validation.inputs[0] == data.train.inputs[0]).all()


@pytest.mark.ci
@pytest.mark.parametrize(("load", "shape"), SETS)
def test_without_a_network_auto_falls_back_at_once_and_says_why(
    watch: Watch, load: Any, shape: tuple[int, ...]
) -> None:
    watched = watch("auto")
    assert_synthetic(load(watched.request), shape)
    (warning,) = watched.warnings
    assert warning.startswith("training on synthetic images instead of ")
    assert "cannot download" in warning
    assert "\n" not in warning
    assert watched.reports[-1] == Progress("generating synthetic images", 10_000, 10_000, "samples")


@pytest.mark.parametrize(("load", "shape"), SETS)
def test_real_is_never_replaced(watch: Watch, load: Any, shape: tuple[int, ...]) -> None:
    del shape
    start = time.monotonic()
    with pytest.raises(DataError, match=r"cannot download .*or use --data synthetic$"):
        load(watch("real").request)
    assert time.monotonic() - start < 30  # as long as a stalled network would be waited for


def test_synthetic_touches_no_file_and_warns_of_nothing(watch: Watch, few_images: None) -> None:
    watched = watch("synthetic")
    assert not vision.mnist(watched.request).real
    assert watched.warnings == []
    assert not watched.request.data_dir.exists()


def test_a_damaged_file_is_named_in_the_fallbacks_warning_and_kept(watch: Watch, few_images: None) -> None:
    watched = watch("auto")
    path = watched.request.data_dir / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.parent.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (path.parent / f"{name}-ubyte").write_bytes(b"x" * 1234)
    assert not vision.mnist(watched.request).real
    (warning,) = watched.warnings
    assert warning == (
        f"training on synthetic images instead of MNIST: {path} is corrupt: 1,234 bytes instead of "
        "47,040,016; delete or rename it to download it again"
    )
    assert path.read_bytes() == b"x" * 1234
    with pytest.raises(DataError, match="download it again, or use --data synthetic"):
        vision.mnist(watch("real").request)


@pytest.mark.parametrize(
    ("load", "in_the_way"),
    [
        (vision.mnist, "MNIST/raw/t10k-images-idx3-ubyte"),
        (vision.cifar10, "cifar-10-batches-py/data_batch_1"),
    ],
)
def test_a_place_that_cannot_be_read_is_a_trouble_with_the_data(
    watch: Watch, load: Any, in_the_way: str
) -> None:
    request = watch("real").request
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (request.data_dir / "MNIST" / "raw" / f"{name}-ubyte").mkdir(parents=True)
    (request.data_dir / in_the_way).mkdir(parents=True, exist_ok=True)
    with pytest.raises(
        DataError, match=r"cannot use .*data/.* \(Is a directory\).*another folder with --data"
    ):
        load(request)


@pytest.mark.parametrize("kind", ["auto", "real", "synthetic"])
def test_stopping_ends_the_work_without_a_fallback(watch: Watch, kind: str) -> None:
    stop = threading.Event()
    stop.set()
    watched = watch(kind, stop)
    with pytest.raises(DataError, match="stopped"):
        vision.mnist(watched.request)
    assert watched.warnings == []
