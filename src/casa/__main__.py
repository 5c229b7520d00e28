"""`python -m casa` is `casa`."""

import sys

from casa.cli import main

sys.exit(main())
