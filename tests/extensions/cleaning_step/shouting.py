"""A step of cleaning: removes lines in capitals."""

import dataclasses

from t5x_like.cleaning.step import PageStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shouting(PageStep):
    """Removes lines of which most letters are capitals, and pages without other lines."""

    share: float = 0.5

    namespace = "shouting"
    rules = {"line": "lines in capitals", "page": "pages with no other lines", "passed": "pages that are kept"}

    def process(self, page, record):
        kept = []
        for line in page.text.split("\n"):
            letters = [letter for letter in line if letter.isalpha()]
            if sum(map(str.isupper, letters)) > self.share * len(letters):
                record.apply("line", page.url, line)
            else:
                kept.append(line)
        if not kept:
            record.apply("page", page.url, page.text)
            return
        record.count("passed")
        yield dataclasses.replace(page, text="\n".join(kept))
