"""Lists the built-in models."""

import argparse

from amptui.base.prompt import say


def add_options(_parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(_options: argparse.Namespace) -> int:
    from amptui.models import CATALOGUE

    width = max(map(len, CATALOGUE))
    for name, (_, lesson) in CATALOGUE.items():
        say(f"{name:{width}}  {lesson}")
    return 0
