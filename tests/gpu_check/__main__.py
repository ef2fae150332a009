"""What only a GPU can show, in one command: it prints one JSON object and nothing else on standard output.

    python -m tests.gpu_check [--only NAME ...] [--out FILE] [--keep DIR] [--data-dir DIR] [--quick]
                              [--longest SECONDS] [--device cuda|cpu]

What takes minutes runs last. Each check's answer is appended to FILE, a JSON object a line, as soon as it is
there: whatever ends the command later loses none, and calls with other ``--only`` add to the same file. No
check begins after the longest time, 25 minutes by default; what was left out is named. Ends with 1 if a
check failed or was left out. Without CUDA it says what it would check, and ends with 0; ``--device cpu`` runs
those that can run there, in small. Runs from the root of a checkout; amptui need not be installed.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

from tests.checkout import child_environment


def main() -> int:
    """Run the command, in a process of its own where ``amptui.models`` is not installed."""
    with child_environment() as environment:
        if not environment:
            from tests.gpu_check.command import main as run

            return run()
        command = [sys.executable, "-m", "tests.gpu_check", *sys.argv[1:]]
        with subprocess.Popen(command, env={**os.environ, **environment}) as child:

            def end(_number: int, _frame: FrameType | None) -> None:
                child.terminate()

            signal.signal(signal.SIGTERM, end)
            return child.wait()


if __name__ == "__main__":
    sys.exit(main())
