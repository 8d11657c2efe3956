"""The task `conversations`: instructions and chats in JSON lines, for supervised fine-tuning of decoders.

    TASK_ARGUMENTS = {"train": "chats.jsonl", "validation": "held_out.jsonl"}

Each line has one of these layouts; other fields are ignored:

* `messages`: a list of objects with `role` and `content`;
* `prompt` and `completion`: two texts, or two lists of messages. A text is a message of the user, or an answer;
* `instruction`, `output` and perhaps `input` (Alpaca, Taori et al. 2023). A given input follows the instruction after
  an empty line.

Features: `targets`, the token ids of the conversation in the chat template of the tokenizer, and `loss_mask`, 1 for
tokens that are trained.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import seqio

from data_tasks.corpora.columns import Integers
from data_tasks.corpora.conversation_files import ConversationFiles, Message, messages
from data_tasks.corpora.split_files import SPLITS
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from t5x_like.data import task_arguments
from t5x_like.data.conversation_specs import LOSS_MASK
from t5x_like.errors import UserError
from t5x_like.vocabularies import conversations
from t5x_like.vocabularies.chat_template import ChatTemplate
from t5x_like.vocabularies.conversations import ASSISTANT
from t5x_like.vocabularies.shipped import PASS_THROUGH

TASK = "conversations"
USER = "user"


def split_record(record: Mapping[str, Any]) -> tuple[Sequence[Message], Sequence[Message], conversations.TrainedTokens]:
    """Returns the prompt and the completion of a record, and the tokens that its layout trains by default.

    Raises:
      UserError: the record has none of the layouts.
    """
    if "messages" in record:
        *prompt, last = messages(record, "messages", USER)
        return prompt, [last], "assistant"
    if "instruction" in record:
        if "output" not in record:
            raise UserError(f"field 'output' not found among {', '.join(map(repr, record))}. Add it.")
        texts = {name: record.get(name, "") for name in ("instruction", "input", "output")}
        if wrong := [
            name for name, text in texts.items() if not isinstance(text, str) or (name == "output" and not text)
        ]:
            raise UserError(
                f"field {wrong[0]!r}: {texts[wrong[0]]!r:.80} is not a text. Give the text of {wrong[0]!r}."
            )
        question = "\n\n".join(filter(None, (texts["instruction"], texts["input"])))
        return [_message(USER, question)], [_message(ASSISTANT, texts["output"])], "completion"
    if "prompt" in record:
        return messages(record, "prompt", USER), messages(record, "completion", ASSISTANT), "completion"
    raise UserError(
        f"fields {', '.join(map(repr, record)) or 'none'} are not a conversation. Give 'messages', 'prompt' and "
        "'completion', or 'instruction' and 'output'."
    )


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _encode(
    template: ChatTemplate, record: Mapping[str, Any], following: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, list[int]]:
    prompt, completion, trained = split_record(record)
    found = conversations.encode(template, prompt, completion, arguments["trained"] or trained)
    return {"targets": found.ids, LOSS_MASK: found.loss_mask}


def _add() -> None:
    arguments = task_arguments.declare(
        TASK,
        **dict.fromkeys(SPLITS),
        # The tokens that have a loss: those of all turns of the "assistant", those of the "completion" (of `messages`,
        # the last one), or "all". Default: "assistant" for `messages`, "completion" for the other layouts.
        trained=None,
        # A Hugging Face directory whose tokenizer has a chat template. Required.
        **{VOCABULARY_PATH: None},
    )
    columns = {"targets": Integers(), LOSS_MASK: Integers()}
    vocabularies = {"targets": late_vocabulary(arguments), LOSS_MASK: PASS_THROUGH}
    seqio.TaskRegistry.add(
        TASK,
        source=ConversationFiles(TASK, arguments, columns, _encode),
        preprocessors=[],
        output_features={name: seqio.Feature(each, add_eos=False) for name, each in vocabularies.items()},
        metric_fns=[],
    )


_add()
