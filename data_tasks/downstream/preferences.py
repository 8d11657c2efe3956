"""Tasks of preferences in JSON lines, in the chat template of the tokenizer.

    TASK_ARGUMENTS = {"train": "pairs.jsonl", "validation": "held_out.jsonl"}

`preferences` reads `prompt`, `chosen` and `rejected`, and perhaps `margin`, a number for reward models. `completions`
reads `prompt`, `completion` and `label`, true if the completion is desirable. A prompt is a text of the user or a list
of messages, and a completion a text of the assistant or a list of messages. Without `prompt`, `chosen` and `rejected`
are whole conversations, and the messages with which both begin are the prompt. Other fields are ignored.

Features: `targets_0` and `targets_1`, the token ids of two conversations, with `loss_mask_0` and `loss_mask_1`, 1 for
tokens of their completions. For `preferences`, the first is the chosen one, with `margin`, float32 `[1]`. For
`completions`, the second is the prompt with the completion of the next line, and `label` is int32 `[1]`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Column, Integer, Integers, Number
from data_tasks.corpora.conversation_files import ConversationFiles, Encode, messages
from data_tasks.corpora.split_files import SPLITS
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.downstream.conversations import USER
from t5x_like.data import task_arguments
from t5x_like.data.conversation_specs import LOSS_MASK
from t5x_like.errors import UserError
from t5x_like.vocabularies import conversations
from t5x_like.vocabularies.chat_template import ChatTemplate
from t5x_like.vocabularies.conversations import ASSISTANT
from t5x_like.vocabularies.shipped import PASS_THROUGH

PAIRS, COMPLETIONS = "preferences", "completions"
Record = Mapping[str, Any]


def _two(
    template: ChatTemplate, record: Record, first: tuple[Record, str], second: tuple[Record, str]
) -> dict[str, list[int]]:
    """Returns the prompt of a record with two completions, each a field of a record."""
    prompt, found = messages(record, "prompt", USER), {}
    for number, (other, name) in enumerate((first, second)):
        encoded = conversations.encode(template, prompt, messages(other, name, ASSISTANT), "completion")
        found |= {f"targets_{number}": encoded.ids, f"{LOSS_MASK}_{number}": encoded.loss_mask}
    return found


def _with_prompt(record: Record) -> Record:
    """Returns a pair with its prompt, which is the common beginning of two whole conversations if it is not given."""
    if "prompt" in record or not all(isinstance(record.get(name), list) for name in ("chosen", "rejected")):
        return record
    chosen, rejected = (messages(record, name, ASSISTANT) for name in ("chosen", "rejected"))
    pairs = zip(chosen, rejected, strict=False)
    count = next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
    if not 0 < count < min(len(chosen), len(rejected)):
        raise UserError(
            "fields 'chosen' and 'rejected': without 'prompt', both begin with the same messages and then differ, but "
            f"of their {len(chosen)} and {len(rejected)} messages, the first {count} are equal. Correct them, or give "
            "'prompt'."
        )
    return {**record, "prompt": chosen[:count], "chosen": chosen[count:], "rejected": rejected[count:]}


def _pair(template: ChatTemplate, record: Record, following: Record, arguments: Record) -> dict[str, Any]:
    record = _with_prompt(record)
    found = _two(template, record, (record, "chosen"), (record, "rejected"))
    try:
        margin = Number().parse(record.get("margin", 0.0))
    except ValueError as error:
        raise UserError(f"field 'margin': {error}.") from error
    return {**found, "margin": margin}


def _completion(template: ChatTemplate, record: Record, following: Record, arguments: Record) -> dict[str, Any]:
    if (label := record.get("label")) not in (True, False):
        raise UserError(f"field 'label': {label!r:.80} is not true or false. Give true for a desirable completion.")
    found = _two(template, record, (record, "completion"), (following, "completion"))
    return {**found, "label": int(label)}


def as_list(name: str) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a preprocessor that makes a scalar feature a list with one value."""
    return lambda ds: ds.map(lambda row: {**row, name: row[name][tf.newaxis]})


def _add(task: str, encode: Encode, name: str, column: Column) -> None:
    arguments = task_arguments.declare(
        task,
        **dict.fromkeys(SPLITS),
        # A Hugging Face directory whose tokenizer has a chat template. Required.
        **{VOCABULARY_PATH: None},
    )
    tokens = {f"targets_{number}": late_vocabulary(arguments) for number in range(2)}
    masks = {f"{LOSS_MASK}_{number}": PASS_THROUGH for number in range(2)}
    columns = {**dict.fromkeys({**tokens, **masks}, Integers()), name: column}
    features = {each: seqio.Feature(vocabulary, add_eos=False) for each, vocabulary in {**tokens, **masks}.items()}
    seqio.TaskRegistry.add(
        task,
        source=ConversationFiles(task, arguments, columns, encode),
        preprocessors=[as_list(name)],
        output_features={**features, name: seqio.Feature(PASS_THROUGH, add_eos=False, dtype=column.dtype)},
        metric_fns=[],
    )


_add(PAIRS, _pair, "margin", Number())
_add(COMPLETIONS, _completion, "label", Integer())
