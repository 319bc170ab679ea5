"""`python -m bcpformat.cli`."""

import sys

from bcpformat.cli.program import main

sys.exit(main())
