"""`python -m attngen` is the command `attngen`."""

from __future__ import annotations

import sys

from attngen.cli import main

sys.exit(main())
