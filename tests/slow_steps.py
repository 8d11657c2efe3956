"""A step of cleaning that takes its time, for tests in which workers are killed."""

import dataclasses
import time
from pathlib import Path

from t5x_like.cleaning.step import PageStep


@dataclasses.dataclass(frozen=True)
class SlowStep(PageStep):
    """Keeps all pages, and creates a file when the first one arrives.

    Attributes:
      started: the file.
      seconds: time per page.
    """

    started: str
    seconds: float = 0.1

    namespace = "slow"
    rules = {"passed": "pages that are kept"}

    def process(self, page, record):
        """Yields the page after a while; see `PageStep`."""
        Path(self.started).touch()
        time.sleep(self.seconds)
        record.count("passed")
        yield page
