"""Folders that can be written and some that cannot, and data sets that are there, damaged or not there."""

import os
from pathlib import Path

import pytest
from torchvision.datasets import CIFAR10

from amptui.data.download import DOWNLOAD_AGAIN
from amptui.data.mnist import FILES, FOLDER
from amptui.reports.doctor.storage import (
    check_cifar10,
    check_data_folder,
    check_mnist,
    check_runs,
    storage_checks,
    why_unwritable,
)


def test_new_folders_are_fine_and_nothing_is_left_there(tmp_path: Path) -> None:
    check = check_runs(tmp_path / "not" / "yet")
    assert check.severity in ("info", "warning")  # a test machine may have little room
    assert check.text.startswith(f"runs are saved in {tmp_path / 'not' / 'yet'}, ")
    assert list(tmp_path.iterdir()) == []


def test_the_folders_are_those_of_the_user() -> None:
    home = os.environ["HOME"]
    assert [check.facts["folder"] for check in storage_checks()] == [
        f"{home}/.local/state/amptui/runs",
        f"{home}/.cache/amptui",
    ]


def test_a_file_in_the_way_stops_runs_and_only_bothers_data(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runs, data = check_runs(tmp_path / "file" / "runs"), check_data_folder(tmp_path / "file" / "data")
    assert (runs.severity, data.severity) == ("error", "warning")
    assert "not a directory" in runs.text
    assert "--run-dir" in runs.hint
    assert "--data-dir" in data.hint


def test_a_file_system_without_files_of_users_cannot_be_written() -> None:
    assert why_unwritable(Path("/proc/amptui"))


@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is read-only to root")
def test_a_read_only_folder_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert why_unwritable(tmp_path / "runs") == "permission denied"
    finally:
        tmp_path.chmod(0o700)


def test_absent_data_is_told_with_what_it_takes_to_get_it(tmp_path: Path) -> None:
    checks = [check_mnist(tmp_path), check_cifar10(tmp_path)]
    assert [(check.severity, check.facts["found"]) for check in checks] == [("warning", False)] * 2
    assert "12 MB" in checks[0].hint


def test_mnist_is_found_packed_or_not(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    first, *others = FILES
    with (folder / first.name).open("wb") as file:
        file.truncate(first.size_bytes)
    for other in others:
        (folder / f"{other.name}.gz").touch()
    assert check_mnist(tmp_path).text == f"MNIST is in {folder}"


def test_a_file_of_mnist_with_a_wrong_size_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / FILES[1].name).write_bytes(b"half a download")
    check = check_mnist(tmp_path)
    assert "train-labels-idx1-ubyte in" in check.text
    assert check.hint == DOWNLOAD_AGAIN


def test_cifar10_is_found_as_a_folder_and_as_an_archive(tmp_path: Path) -> None:
    (tmp_path / CIFAR10.filename).touch()
    assert check_cifar10(tmp_path).facts["found"] is True
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    for name, _md5 in CIFAR10.train_list + CIFAR10.test_list:
        (folder / name).touch()
    assert check_cifar10(tmp_path).text == f"CIFAR-10 is in {folder}"
    (folder / "test_batch").unlink()
    assert check_cifar10(tmp_path).text == f"CIFAR-10: test_batch is missing from {folder}"
