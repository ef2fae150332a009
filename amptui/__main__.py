"""``python -m amptui``: the same program as the ``amptui`` command."""

import sys

from amptui.cli import main

sys.exit(main())
