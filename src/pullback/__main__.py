"""`python -m pullback`: the same as the `pullback` command."""

import sys

from pullback.cli import main

sys.exit(main())
