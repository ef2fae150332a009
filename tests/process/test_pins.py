"""What a user pinned to the screen comes back on the next one; anything else in its place is ignored."""

import stat
from pathlib import Path

import pytest

from amptui.process.viewer import read_pins, write_pins

PINS = (("part", "digit"), ("step", "grad_norm"))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pins are kept; its folder does not exist yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "amptui" / "pinned.json"


def test_pins_come_back_and_are_this_user_s_alone(file: Path) -> None:
    assert read_pins() == ()
    assert write_pins(PINS) == ""
    assert read_pins() == PINS
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert write_pins(()) == ""
    assert read_pins() == ()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_is_forged_is_ignored_and_a_folder_in_its_place_is_told(file: Path) -> None:
    file.parent.mkdir(parents=True)
    for content in (b"{}", b'[["part", 1]]', b"\xff\xfe", b"[" * 5000):
        file.write_bytes(content)
        assert read_pins() == (), content[:20]
    assert write_pins((("part", "x" * 5000),)), "a reason"
    file.unlink()
    file.mkdir()
    assert write_pins(PINS), "a reason"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
