"""Makes `python -m t5x_like` equivalent to the command `t5x_like`."""

import sys

from t5x_like.cli import main

sys.exit(main())
