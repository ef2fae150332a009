"""Plants faults in every room of the product, one at a time, and tells which of them no test finds.

`python -m tests.benchmarks.mutants --folder NEW_FOLDER` works in a copy of a checkout with an environment
of its own. The faults are a fixed choice: the same code has the same ones, so two suites can be compared. The
tests of CI run once to see who covers which line (a quarter of an hour); then, for each fault, those that ran
its line, beginning with those of its room. `--tests` names others, as those that start processes.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import CoverageData

SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.And: ast.Or(), ast.Or: ast.And(),
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
}  # fmt: skip
"""The operator that takes the place of another."""


@dataclass(frozen=True)
class Mutant:
    """One piece of a file's text, and what stands there instead."""

    path: str
    line: int
    start: int
    """Offset in bytes, as ``ast`` counts columns."""
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {shortened(self.before)}  ->  {shortened(self.after)}"


def shortened(code: str) -> str:
    """Code on one line of a table."""
    code = " ".join(code.split())
    return code if len(code) <= 60 else f"{code[:40]} ... {code[-15:]}"


def operator_changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """An expression with another operator."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=comparators) if type(operator) in SWAPPED:
            yield node, ast.unparse(ast.Compare(left, [SWAPPED[type(operator)]], comparators))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SWAPPED:
            if not any(isinstance(side, ast.JoinedStr) for side in (left, right)):
                yield node, f"({ast.unparse(ast.BinOp(left, SWAPPED[type(operator)], right))})"
        case ast.BoolOp(op=operator, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(SWAPPED[type(operator)], values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"


def other_changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """The other branch, another constant, a call that is not made, a result that is not returned."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All that can be planted in the functions of a file."""
    source = path.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    planted = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name == "__repr__":
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef | ast.JoinedStr | ast.AnnAssign | ast.Raise):
                    continue
                for place, after in (*operator_changes(node), *other_changes(node)):
                    start = offsets[place.lineno - 1] + place.col_offset
                    assert place.end_lineno is not None
                    assert place.end_col_offset is not None
                    end = offsets[place.end_lineno - 1] + place.end_col_offset
                    before = source[start:end].decode()
                    planted.append(
                        Mutant(str(path.relative_to(root)), place.lineno, start, end, before, after)
                    )
    return list(dict.fromkeys(planted))


def chosen(root: Path, per_room: int) -> list[Mutant]:
    """The same few of each room whenever its code is the same: those whose digests come first."""
    rooms: dict[str, list[Mutant]] = {}
    for path in sorted((root / "amptui").rglob("*.py")):
        if "models" not in path.parts:
            parts = path.relative_to(root / "amptui").parts
            rooms.setdefault(parts[0] if len(parts) > 1 else "doors", []).extend(mutants_of(path, root))
    digest = {m: hashlib.sha256(str(m).encode()).hexdigest() for room in rooms.values() for m in room}
    return [mutant for room in rooms.values() for mutant in sorted(room, key=digest.__getitem__)[:per_room]]


def environment_for(folder: Path) -> Path:
    """A Python whose ``amptui`` is the copy in ``folder``, with the packages of this one."""
    (folder / "amptui" / "models").symlink_to("../models")
    venv.create(folder / ".venv", symlinks=True)
    python = folder / ".venv" / "bin" / "python"
    packages = (
        folder
        / ".venv"
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    (packages / "copy.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n")
    script = folder / ".venv" / "bin" / "amptui"
    script.write_text(f"#!{python}\nimport sys\nfrom amptui.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return python


def measured_coverage(python: Path, copy: Path, folder: Path) -> tuple[CoverageData, set[str]]:
    """Which test of CI runs which line, and those that fail without a fault."""
    file, cache = folder / "coverage", folder / "cache"
    if not file.exists():
        options = ["--cov", "--cov-context=test", "--cov-report=", "-o", f"cache_dir={cache}"]
        command = [str(python), "-m", "pytest", "-q", "-n", "2", "-m", "not nightly", *options]
        subprocess.run(command, cwd=copy, env=os.environ | {"COVERAGE_FILE": str(file)}, check=False)
    failed = cache / "v" / "cache" / "lastfailed"
    data = CoverageData(str(file))
    data.read()
    return data, set(json.loads(failed.read_text())) if failed.exists() else set()


def covering(data: CoverageData, copy: Path, mutant: Mutant) -> list[str]:
    """The tests that ran the line of ``mutant``, those of its file and its room first."""
    by_line = data.contexts_by_lineno(str(copy / mutant.path))
    tests = {re.sub(r"\|\w+$", "", context) for context in by_line.get(mutant.line, []) if context}
    path = Path(mutant.path)

    def distance(test: str) -> tuple[bool, bool, str]:
        return path.stem not in test, f"/{path.parent.name}/" not in test, test

    return sorted(tests, key=distance)


def run_tests(python: Path, folder: Path, tests: Sequence[str], seconds: float) -> str | None:
    """The first test that fails, or None if none does in ``seconds``; a test that hangs fails by itself."""
    names = folder / "chosen_tests"
    names.write_text("\n".join(tests))
    command = [
        str(python),
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        "--no-header",
        f"@{names}",
    ]
    environment = os.environ | {"PYTHONPATH": ""}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return None
    return failed[1] if failed else f"pytest's exit status {done.returncode}"


def main() -> None:
    """Print a row for each fault: by which test it was found, or that it survived; keep them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mutants", description=__doc__)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--per-room", type=int, default=5, metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE:LINE")
    parser.add_argument(
        "--tests", nargs="+", default=[], metavar="PATH", help="run these tests for each fault"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for the tests of one fault")
    parser.add_argument("--folder", type=Path, required=True, help="a new one, for the copy and the results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no fault stays planted
    copy = arguments.folder.resolve() / "copy"
    if not copy.exists():
        ignored = shutil.ignore_patterns(
            ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
        )
        shutil.copytree(arguments.checkout, copy, ignore=ignored)
        environment_for(copy)
    python = copy / ".venv" / "bin" / "python"
    data, red = measured_coverage(python, copy, arguments.folder.resolve())
    results = []
    for mutant in chosen(copy, arguments.per_room):
        if arguments.only and not any(str(mutant).startswith(f"{place} ") for place in arguments.only):
            continue
        tests = [*(test for test in covering(data, copy, mutant) if test not in red), *arguments.tests]
        path, begun = copy / mutant.path, time.monotonic()
        source = path.read_bytes()
        try:
            path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
            failed_test = run_tests(python, copy, tests, arguments.seconds) if tests else None
        finally:
            path.write_bytes(source)
        outcome = "SURVIVED" if failed_test is None else f"found by {failed_test}"
        print(f"{mutant}\n    {outcome}  [{len(tests)} tests, {time.monotonic() - begun:.0f} s]", flush=True)
        results.append({"mutant": str(mutant), "tests": len(tests), "found_by": failed_test})
    (arguments.folder / "mutants.json").write_text(json.dumps(results, indent=1))
    survivors = sum(row["found_by"] is None for row in results)
    print(f"{len(results)} faults, {survivors} survived")


if __name__ == "__main__":
    main()
