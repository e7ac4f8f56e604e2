"""``python -m consumerd``."""

import sys

from consumerd.cli.main import main

sys.exit(main())
