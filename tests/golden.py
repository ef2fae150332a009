"""Texts as they were last approved: screens, words, reports. `pytest --update-goldens` writes them anew.

A text that people read in a review is a file of `tests/goldens/`; of the rest a digest is kept, in one JSON
file for each test file, so that one process of `-n` writes it.
"""

import difflib
import hashlib
import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "goldens"


class Goldens:
    """What the tests of one file compare with; ``update`` writes instead."""

    def __init__(self, test_file: str, *, update: bool, scratch: Path) -> None:
        self._digests_file = FOLDER / f"{test_file}.json"
        self._update = update
        self._scratch = scratch

    def check(self, name: str, text: str) -> None:
        """Compare ``text`` with the file called ``name``, which may hold folders: "screens/help 80x24"."""
        path = FOLDER / f"{file_name(name)}.txt"
        text = text.rstrip("\n") + "\n"
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        approved = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != approved:
            lines = difflib.unified_diff(
                approved.splitlines(), text.splitlines(), f"goldens/{path.name}", "now", lineterm="", n=2
            )
            raise AssertionError("\n".join(["another text (--update-goldens approves it):", *lines]))

    def check_digests(self, texts: dict[str, str]) -> None:
        """Compare many texts, by name, of which digests are kept: all those of one test file at once."""
        digests = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}
        if self._update:
            lines = json.dumps(digests, indent=0, ensure_ascii=False, sort_keys=True)
            self._digests_file.write_text(lines + "\n", encoding="utf-8")
            return
        approved = json.loads(self._digests_file.read_text(encoding="utf-8"))
        changed = [name for name in {**approved, **digests} if approved.get(name) != digests.get(name)]
        for name in changed:
            (self._scratch / f"{file_name(name).replace('/', '-')}.txt").write_text(texts.get(name, ""))
        assert not changed, f"other texts, which are in {self._scratch}: {', '.join(changed)}"


def file_name(name: str) -> str:
    """A name in letters that every file system takes; the slashes of folders stay."""
    return re.sub(r"[^\w/.+-]+", "-", name).strip("-")
