"""Modules and parameters of configurable objects that have moved: gin files of users have their old names."""

import re

# Old name of a module, or of a package with all its modules -> its name.
MOVED = {
    "t5x_like.objectives.bigbird_heads": "t5x_like.objectives.heads.bigbird_heads",
    "t5x_like.objectives.birnn_head": "t5x_like.objectives.heads.birnn_head",
    "t5x_like.objectives.compared_texts": "t5x_like.objectives.heads.compared_texts",
    "t5x_like.objectives.drqa_head": "t5x_like.objectives.heads.drqa_head",
    "t5x_like.objectives.entity_heads": "t5x_like.objectives.heads.entity_heads",
    "t5x_like.objectives.global_tokens": "t5x_like.objectives.heads.global_tokens",
    "t5x_like.objectives.pair_attention": "t5x_like.objectives.heads.pair_attention",
    "t5x_like.objectives.pooled_tokens": "t5x_like.objectives.heads.pooled_tokens",
    "t5x_like.objectives.pooled_windows": "t5x_like.objectives.heads.pooled_windows",
    "t5x_like.objectives.question_heads": "t5x_like.objectives.heads.question_heads",
    "t5x_like.objectives.text_ids": "t5x_like.objectives.heads.text_ids",
    "t5x_like.objectives.text_vectors_head": "t5x_like.objectives.heads.text_vectors_head",
    "t5x_like.objectives.fasttext": "t5x_like.objectives.word_vectors.fasttext",
    "t5x_like.objectives.fasttext_classification": "t5x_like.objectives.word_vectors.fasttext_classification",
    "t5x_like.objectives.glove": "t5x_like.objectives.word_vectors.glove",
    "t5x_like.objectives.word2vec": "t5x_like.objectives.word_vectors.word2vec",
    "t5x_like.objectives.word_outputs": "t5x_like.objectives.word_vectors.word_outputs",
    "t5x_like.training.checkpoints": "t5x_like.checkpoints",
    "t5x_like.training.layer_choice": "t5x_like.stored.layer_choice",
    "t5x_like.training.weight_source": "t5x_like.stored.weight_source",
}
# Callable -> parameter -> the callable that has the parameter now, under the same name.
MOVED_PARAMETERS = {
    "t5x_like.convert.convert": {
        **dict.fromkeys(
            ("checkpoint", "model", "network", "averaged", "base_path", "vocabulary_path", "allow_nonfinite"),
            "t5x_like.conversion.settings.Source",
        ),
        **dict.fromkeys(
            ("heads", "labels", "head", "bos_id", "merge", "integers"), "t5x_like.conversion.settings.Target"
        ),
        **dict.fromkeys(
            ("fold_norms", "long", "quantization", "quantized_inputs"), "t5x_like.conversion.settings.Changes"
        ),
    },
    "t5x_like.inspect_task.inspect": dict.fromkeys(
        (
            *("mixture_or_task_name", "task_feature_lengths", "batch_size", "split", "seed", "use_cached", "module"),
            *("task_arguments", "rates", "vocabulary_path", "data_files", "validation_files", "text_column"),
            *("on_bad_record", "continuous"),
        ),
        "t5x_like.data.seqio_feed.SeqIOSource",
    ),
}
_NAME = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, MOVED))})(?!\w)")
_IMPORT = re.compile(r"^from ([\w.]+) import (\w+)", re.MULTILINE)


def renamed(text: str) -> str:
    """Returns gin text with the present names of modules. Lines stay where they are."""

    def imported(match: re.Match) -> str:
        found = MOVED.get(f"{match[1]}.{match[2]}")
        return match[0] if found is None else "from {} import {}".format(*found.rsplit(".", 1))

    return _NAME.sub(lambda match: MOVED[match[1]], _IMPORT.sub(imported, text))
