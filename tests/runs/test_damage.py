"""What could not be read is told in one line."""

from pathlib import Path

import pytest

from amptui import codec
from amptui.records import Note
from amptui.runs.damage import passed_over
from amptui.runs.journal import read

SOUND = f"{codec.dumps(Note(time=1.0, severity='info', text='a'))}\n"
NEWER = '{"type":"FromTheFuture","time":1.0}\n'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (SOUND, ""),
        ("x\n", "passed over: 1 damaged line"),
        ("x\n" * 1200 + SOUND, "passed over: 1,200 damaged lines"),
        (NEWER * 2, "passed over: 2 records of a later version"),
        (SOUND + SOUND[:20], "passed over: a last line that was cut off"),
        (
            f"x\n{NEWER}x",
            "passed over: 1 damaged line, 1 record of a later version, a last line that was cut off",
        ),
    ],
)
def test_damage_is_told_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    reader = read(path)
    assert passed_over(reader) == ""
    assert len(list(reader)) == content.count(SOUND)
    assert passed_over(reader) == told
