"""Modules of configurable objects that have moved: files of earlier versions have their old names."""

import re

# Old name of a module, or of a package with all its modules -> its name.
MOVED = {
    "t5x_like.inference.loaded": "t5x_like.stored.loaded",
    "t5x_like.training.checkpoints": "t5x_like.checkpoints",
    "t5x_like.training.frozen_base": "t5x_like.stored.frozen_base",
    "t5x_like.training.gathering": "t5x_like.objectives.gathering",
    "t5x_like.training.gradients": "t5x_like.objectives.gradients",
    "t5x_like.training.layer_choice": "t5x_like.stored.layer_choice",
    "t5x_like.training.loaded_teachers": "t5x_like.stored.loaded_teachers",
    "t5x_like.training.network_weights": "t5x_like.stored.network_weights",
    "t5x_like.training.ranges": "t5x_like.adapters.ranges",
    "t5x_like.training.runs.run_tokenizer": "t5x_like.stored.run_tokenizer",
    "t5x_like.training.runs.run_vocabulary": "t5x_like.stored.run_vocabulary",
    "t5x_like.training.warm_start": "t5x_like.stored.warm_start",
    "t5x_like.training.weight_agreement": "t5x_like.stored.weight_agreement",
    "t5x_like.training.weight_digest": "t5x_like.stored.weight_digest",
    "t5x_like.training.weight_files": "t5x_like.checkpoints.weight_files",
    "t5x_like.training.weight_fits": "t5x_like.stored.weight_fits",
    "t5x_like.training.weight_sizes": "t5x_like.stored.weight_sizes",
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
