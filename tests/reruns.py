"""Runs a test that failed once more, alone in a new process: one that passes there is flaky, not red.

A pytest plugin that conftest.py registers; it works with and without `-n`. Published plugins repeat a test in
the process in which it failed, beside whatever made it fail. A flaky test is named at the end, with how it
failed: it is to be understood next. What a law's example disproved (hypothesis) is never called flaky.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable

import pytest

MAX_RERUNS = 10
"""More tests that fail are no accident."""

NESTED = "AMPTUI_TESTS_NESTED"
"""Set for a pytest that a test, or this plugin, starts: what fails there is repeated from the outside."""


def register(config: pytest.Config) -> None:
    """For ``pytest_configure``: of the processes of a run, the one that counts runs again what failed."""
    if not hasattr(config, "workerinput") and NESTED not in os.environ:
        config.pluginmanager.register(Reruns(config), "reruns")
    os.environ[NESTED] = "1"


class Reruns:
    """Collects the tests that fail; when all tests are done, runs each of them again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._environment = os.environ | {NESTED: "1"}  # before tests change it
        self._failures: list[pytest.TestReport] = []
        self._again: dict[str, subprocess.CompletedProcess[str]] = {}
        """By a test's id, what its second run printed."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Once every process of `-n` has ended: run again, and let the exit status say what is left."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not self._are_worth_it(session):
            return
        for name in _names(self._failures):
            self._again[name] = self._run_alone(name)
        flaky = self._names_by_outcome(passed=True)
        _count_as_flaky(session.config, flaky)
        if len(flaky) == len(self._again):
            session.exitstatus = pytest.ExitCode.OK

    def _are_worth_it(self, session: pytest.Session) -> bool:
        """Whether the failures are all there is against this run, and few, and may be chance."""
        names = _names(self._failures)
        is_whole = not (session.shouldfail or session.shouldstop or session.config.getoption("usepdb"))
        are_all = session.testsfailed == len(self._failures)
        disproved = any("hypothesis" in report.keywords for report in self._failures)
        return is_whole and are_all and not disproved and len(names) <= MAX_RERUNS

    def _run_alone(self, name: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "pytest", *_options(self._config), name],
            cwd=self._config.rootpath,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )

    def _names_by_outcome(self, *, passed: bool) -> list[str]:
        return [name for name, done in self._again.items() if _passed(done) is passed]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """How a flaky test failed the first time; how a red one failed the second time, alone."""
        flaky = self._names_by_outcome(passed=True)
        for report in self._failures:
            if report.nodeid in flaky:
                terminalreporter.section(f"FLAKY {report.nodeid}: its failure")
                terminalreporter.write_line(_told(report))
        for name in self._names_by_outcome(passed=False):
            terminalreporter.section(f"FAILED AGAIN, alone: {name}")
            terminalreporter.write_line(textwrap.indent(self._again[name].stdout, "    "))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """The last lines, after pytest's count."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not self._again:
            return
        flaky, red = self._names_by_outcome(passed=True), self._names_by_outcome(passed=False)
        for name in flaky:
            reporter.write_line(f"FLAKY {name}: failed once, passed when run again alone")
        for name in red:
            reporter.write_line(f"FAILED {name}: failed twice, the second time alone")
        verdict = f"RED: {len(red)} failed twice" if red else "GREEN: nothing failed twice"
        reporter.write_line(f"{verdict}, {len(flaky)} flaky")


def _passed(done: "subprocess.CompletedProcess[str]") -> bool:
    """A test that is skipped the second time has not passed, although pytest is content.

    Its count is not always the last line: libraries may write more as the process ends.
    """
    counts = re.findall(r"^(?:=+ )?(\d+ .*) in [\d.]+s", done.stdout, re.MULTILINE)
    return done.returncode == 0 and bool(counts) and re.search(r"\b1 passed\b", counts[-1]) is not None


def _names(failures: Iterable[pytest.TestReport]) -> list[str]:
    """Each test's id once: one may fail in its call and in its teardown."""
    return list(dict.fromkeys(report.nodeid for report in failures))


def _options(config: pytest.Config) -> list[str]:
    """Options with which one test runs as it did, whatever its markers, in a single process."""
    given = config.option
    options = ["-m", "", *(word for plugin in given.plugins for word in ("-p", plugin))]
    options += [word for setting in given.override_ini or () for word in ("-o", setting)]
    options += [word for line in given.pythonwarnings or () for word in ("-W", line)]
    if config.inipath is not None:
        options += ["-c", str(config.inipath)]
    options += [f"--rootdir={config.rootpath}", "--no-header", "--color=no"]
    return options + (["-n", "0"] if config.pluginmanager.hasplugin("xdist") else [])


def _count_as_flaky(config: pytest.Config, names: list[str]) -> None:
    """Move what pytest counted as failed or as an error, so that its last line says `1 flaky`."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    for outcome in ("failed", "error"):
        reports = reporter.stats.pop(outcome, [])
        reporter.stats["flaky"] = reporter.stats.get("flaky", []) + [r for r in reports if r.nodeid in names]
        if left := [report for report in reports if report.nodeid not in names]:
            reporter.stats[outcome] = left
    if not reporter.stats["flaky"]:
        del reporter.stats["flaky"]


def _told(report: pytest.TestReport) -> str:
    """The traceback, and what was captured besides."""
    captured = [f"{title}:\n{text}" for title, text in report.sections]
    return "\n".join([report.longreprtext, *captured])
