"""Modules of configurable objects that have moved: files of earlier versions have their old names."""

import re

# Old name of a module, or of a package with all its modules -> its name.
MOVED = {
    "t5x_like.training.checkpoints": "t5x_like.checkpoints",
    "t5x_like.training.layer_choice": "t5x_like.stored.layer_choice",
    "t5x_like.training.weight_source": "t5x_like.stored.weight_source",
}
_NAME = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, MOVED))})(?!\w)")
_IMPORT = re.compile(r"^from ([\w.]+) import (\w+)", re.MULTILINE)


def renamed(text: str) -> str:
    """Returns gin text with the present names of modules. Lines stay where they are."""

    def imported(match: re.Match) -> str:
        found = MOVED.get(f"{match[1]}.{match[2]}")
        return match[0] if found is None else "from {} import {}".format(*found.rsplit(".", 1))

    return _NAME.sub(lambda match: MOVED[match[1]], _IMPORT.sub(imported, text))
