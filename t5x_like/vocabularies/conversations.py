"""Token ids of conversations for training, and which of the tokens are trained."""

import bisect
from typing import Literal, NamedTuple, get_args

from t5x_like.errors import UserError
from t5x_like.vocabularies.chat_template import ChatTemplate, Messages, Span

ASSISTANT = "assistant"
TrainedTokens = Literal["assistant", "completion", "all"]


class Encoded(NamedTuple):
    """A conversation as a decoder reads it.

    Attributes:
      ids: Its token ids, with the special tokens of the template and no others.
      loss_mask: 1 for each token that has a loss, otherwise 0.
    """

    ids: list[int]
    loss_mask: list[int]


def encode(template: ChatTemplate, prompt: Messages, completion: Messages, trained: TrainedTokens) -> Encoded:
    """Encodes a conversation.

    With `"assistant"`, the trained tokens are those of the blocks `{% generation %}` of the template, as in the
    `assistant_masks` of transformers. A template without them is rendered up to each answer, with what begins one, and
    with the answer: the text that the answer adds is trained, which includes the end of its turn. With `"completion"`,
    the trained text is that which follows the rendered prompt and what begins an answer, as in TRL. A token at an edge
    is trained if any of its characters is.

    Args:
      template: The chat template of the tokenizer.
      prompt: The messages before the completion; may be empty.
      completion: The messages of the completion.
      trained: `"assistant"`, all turns of the assistant; `"completion"`, the completion; or `"all"`.

    Raises:
      UserError: The template refuses the conversation, or renders its beginning differently when more follows; no token
        is trained; or a trained completion does not begin with an answer.
    """
    if trained not in get_args(TrainedTokens):
        raise UserError(f"trained={trained!r}: not one of {', '.join(get_args(TrainedTokens))}. Give one of them.")
    messages = [*prompt, *completion]
    text = template.render(messages)
    if trained == "all":
        spans = [(0, len(text))]
    elif trained == "completion":
        if (role := completion[0].get("role")) != ASSISTANT:
            raise UserError(
                f"the completion begins with a message of the role {role!r}, which would be trained. Begin it with a "
                f"message of the role {ASSISTANT!r}, and give the messages before it in the prompt alone."
            )
        spans = [_added(template, text, messages, len(prompt), len(messages))]
    elif template.marks_answers:
        marked, spans = template.render_marked(messages)
        if marked != text:
            raise UserError(
                f"{template.source}: messages have U+FDD0 or U+FDD1, which are not characters. Remove them."
            )
    else:
        spans = [
            _added(template, text, messages, number, number + 1)
            for number, message in enumerate(messages)
            if message.get("role") == ASSISTANT
        ]
    ids, offsets = template.encode_spans(text)
    mask = _mask(offsets, spans)
    if not any(mask):
        raise UserError(f"no token is trained with trained={trained!r}. Give an answer of the assistant.")
    return Encoded(ids, mask)


def _added(template: ChatTemplate, text: str, messages: Messages, first: int, end: int) -> Span:
    """Returns the characters from the end of what begins answer `first` to the end of the message before `end`."""
    before = template.render(messages[:first], add_generation_prompt=True)
    until = text if end == len(messages) else template.render(messages[:end])
    if not (until.startswith(before) and text.startswith(until)):
        raise UserError(
            f"{template.source}: renders the first {first} messages differently when others follow, so that the answer "
            "cannot be found in the text. Put {% generation %} and {% endgeneration %} around answers in the template, "
            "or give trained='all'."
        )
    return len(before), len(until)


def _mask(offsets: list[Span], spans: list[Span]) -> list[int]:
    """Returns 1 for tokens that overlap one of the ascending spans of characters."""
    begins, ends = [begin for begin, _ in spans], [end for _, end in spans]
    mask = []
    for begin, end in offsets:
        number = bisect.bisect_right(ends, begin)  # the first span that ends after the token begins
        mask.append(int(number < len(spans) and begin < end and begins[number] < end))
    return mask
