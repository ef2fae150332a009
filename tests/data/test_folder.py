"""Images in folders: which are found, in which class, how they come to the model, and what is refused."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from amptui.base.errors import DataError
from amptui.data.batches import open_batches
from amptui.data.folder import image_folder
from amptui.data.sources import Arrays, Data

Watch = Callable[..., Any]

CPU = torch.device("cpu")
COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def load(request: Any, **options: Any) -> Data:
    return image_folder(request, **{"batch_size": 4, "image_size": 32, "classes": 3} | options)


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (48, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(watch: Watch) -> Path:
    """Six images of each of three colours to train on, two to validate with."""
    root: Path = watch().request.data_dir
    for name, colour in COLOURS.items():
        for number in range(6):
            paint(root / "train" / name / f"{number}.png", colour)
        for number in range(2):
            paint(root / "val" / name / f"{number}.JPEG", colour)
    return root


def batches(data: Data, *, training: bool, workers: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source: Any = data.train if training else data.validation
    options: Any = {"device": CPU, "batch_size": 4, "seed": 0, "training": training, "workers": workers}
    opened = open_batches(source, **options)
    found = list(opened.epoch(0))
    opened.close()
    return found


def test_images_come_as_bytes_with_their_class(watch: Watch, folder: Path) -> None:
    data = load(watch("real").request)
    assert (data.name, data.real) == (folder.name, True)
    training = batches(data, training=True)
    assert [len(labels) for _, labels in training] == [4, 4, 4, 4]  # 18 images, and no short batch
    assert sum(len(labels) for _, labels in batches(data, training=False)) == 6
    for images, labels in training:
        assert images.dtype == torch.uint8
        assert images.shape == (4, 3, 32, 32)
        pure = torch.tensor(list(COLOURS.values()), dtype=torch.uint8)[labels]
        assert torch.equal(images, pure[:, :, None, None].expand_as(images))


def test_a_damaged_image_is_named_in_one_line(watch: Watch, folder: Path) -> None:
    path = folder / "val" / "red" / "1.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    data = load(watch("real").request)
    with pytest.raises(DataError) as refused:
        batches(data, training=False, workers=1)
    for error in (refused.value, refused.value.__cause__):
        # A loader that is freed with a cycle of objects waits 5 s for its workers: torch leaves one behind.
        traceback.clear_frames(error.__traceback__ if error else None)
    said = str(refused.value)
    assert said.startswith(f"cannot read {path} as an image (")
    assert said.endswith("; delete or move it")
    assert "\n" not in said


def test_without_a_folder_auto_takes_random_images_and_says_why(watch: Watch) -> None:
    watched = watch("auto")
    data, again = (load(watched.request, batch_size=8) for _ in range(2))
    assert (data.name, data.real, data.validation) == ("random images", False, None)
    assert isinstance(data.train, Arrays)
    assert isinstance(again.train, Arrays)
    assert (data.train.inputs.shape, data.train.inputs.dtype) == ((128, 3, 32, 32), torch.uint8)
    assert set(data.train.targets.tolist()) == {0, 1, 2}
    assert torch.equal(again.train.inputs, data.train.inputs)
    warning, _ = watched.warnings
    assert warning == (
        f"training on random images instead of {watched.request.data_dir}: "
        f"{watched.request.data_dir / 'train'} does not exist; "
        "use --data-dir with a folder that contains train/CLASS/IMAGE and val/CLASS/IMAGE"
    )


def no_classes(folder: Path) -> None:
    for path in (folder / "val").iterdir():
        path.rename(folder / "train" / path.name / "within")
    paint(folder / "val" / "1.png", COLOURS["red"])


def an_unknown_class(folder: Path) -> None:
    (folder / "val" / "red").rename(folder / "val" / "purple")


def no_images(folder: Path) -> None:
    for path in (folder / "train").rglob("*.png"):
        path.rename(path.with_suffix(".txt"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            no_classes,
            r"val has no class folders; use --data-dir with a folder that contains train/CLASS/IMAGE",
        ),
        (an_unknown_class, r"val/purple is a class that is not in train"),
        (no_images, r"train has no images"),
    ],
)
def test_a_layout_that_cannot_be_used_is_told(
    watch: Watch, folder: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(folder)
    with pytest.raises(DataError, match=f"{said}.* --data synthetic$"):
        load(watch("real").request)
    watched = watch("auto")
    watched.stop.set()
    with pytest.raises(DataError, match="stopped"):
        load(watched.request)
    assert watched.warnings == [], "a stop needs no stand-in"


def test_more_classes_than_the_model_has_are_refused_and_validation_may_be_missing(
    watch: Watch, folder: Path
) -> None:
    with pytest.raises(DataError, match="train has 3 classes, but the model has 2; use --set classes=3"):
        load(watch("real").request, classes=2)
    (folder / "val").rename(folder / "test")
    assert load(watch("real").request).validation is None
