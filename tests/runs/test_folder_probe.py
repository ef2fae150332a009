"""Folders that never answer cost a wait once, and keep nobody else from answering."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.runs.folder_probe import FolderProbe


class FileSystem:
    """Answers with the folder's name; for folders that are ``dead`` only when they are no longer."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.dead: set[str] = set()
        self.looked: list[str] = []

    def look(self, folder: str) -> str:
        self.looked.append(folder)
        if folder in self.dead:
            self.back.wait()
        return folder.upper()


@pytest.fixture
def files() -> Iterator[FileSystem]:
    files = FileSystem()
    yield files
    files.back.set()


@pytest.mark.ci
def test_a_folder_that_does_not_answer_is_left_out_and_all_others_are_there(files: FileSystem) -> None:
    files.dead = {"/dead/b", "/gone/c"}
    probe = FolderProbe()
    folders = ["/a/a", "/dead/b", "/gone/c", "/a/d", "/gone/e"]
    assert probe.look(folders, files.look) == {"/a/a": "/A/A", "/a/d": "/A/D"}
    assert files.looked == ["/a/a", "/dead/b", "/gone/c", "/a/d"], "what lies beside it is not asked"


@pytest.mark.ci
def test_it_is_not_asked_again_before_it_answers(files: FileSystem) -> None:
    files.dead = {"/dead/b"}
    probe = FolderProbe()
    assert probe.look(["/dead/b"], files.look) == {}
    before = threading.active_count()
    for _ in range(3):
        assert probe.look(["/dead/b", "/a"], files.look) == {"/a": "/A"}
    assert files.looked.count("/dead/b") == 1
    assert threading.active_count() == before
    (waits,) = [thread for thread in threading.enumerate() if thread.name == "amptui-folders"]
    files.back.set()
    waits.join()
    assert probe.look(["/dead/b", "/dead/c"], files.look) == {"/dead/b": "/DEAD/B", "/dead/c": "/DEAD/C"}


@given(st.lists(st.text(), unique=True))
def test_where_all_answer_all_are_there_in_their_order(folders: list[str]) -> None:
    assert list(FolderProbe().look(folders, str.upper).items()) == [(name, name.upper()) for name in folders]
