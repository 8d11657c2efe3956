"""The task `prompts`: prompts of a decoder in JSON lines, in the chat template of the tokenizer.

    TASK_ARGUMENTS = {"train": "prompts.jsonl", "validation": "held_out.jsonl"}

Each line has a `prompt`, a text of the user or a list of messages, and perhaps an `answer`, a text that the reward
functions of sampled completions get as well. Other fields are ignored.

Features: `inputs`, the token ids of the prompt and of what begins an answer in the template, and `targets`, the token
ids of the answer alone. A prompt that is too long loses its beginning.
"""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Integers
from data_tasks.corpora.conversation_files import ConversationFiles, messages
from data_tasks.corpora.split_files import SPLITS
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.downstream.conversations import USER
from t5x_like.data import task_arguments, trimming
from t5x_like.errors import UserError
from t5x_like.vocabularies.chat_template import ChatTemplate

TASK = "prompts"


def _encode(
    template: ChatTemplate, record: Mapping[str, Any], following: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, list[int]]:
    if not isinstance(answer := record.get("answer", ""), str):
        raise UserError(f"field 'answer': {answer!r:.80} is not a text. Give a string.")
    return {"inputs": template.prompt(messages(record, "prompt", USER)), "targets": template.encode(answer)}


def keep_end(ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None = None) -> tf.data.Dataset:
    """Trims the beginning of prompts to their length."""
    length = trimming.lengths(sequence_length).get("inputs")
    return ds if length is None else ds.map(lambda row: {**row, "inputs": row["inputs"][-length:]})


def _add() -> None:
    arguments = task_arguments.declare(
        TASK,
        **dict.fromkeys(SPLITS),
        # A Hugging Face directory whose tokenizer has a chat template. Required.
        **{VOCABULARY_PATH: None},
    )
    names = ("inputs", "targets")
    seqio.TaskRegistry.add(
        TASK,
        source=ConversationFiles(TASK, arguments, dict.fromkeys(names, Integers()), _encode),
        preprocessors=[keep_end],
        output_features={name: seqio.Feature(late_vocabulary(arguments), add_eos=False) for name in names},
        metric_fns=[],
    )


_add()
