"""Templates: the special tokens that published tokenizers place around one or two texts, and token types.

| vocabulary | one text | two texts | token types |
|---|---|---|---|
| BERT, DistilBERT, ELECTRA, ALBERT | `[CLS] a [SEP]` | `[CLS] a [SEP] b [SEP]` | 1 for `b [SEP]` |
| XLNet | `a <sep> <cls>` | `a <sep> b <sep> <cls>` | 1 for `b <sep>`, 2 for `<cls>` |
| RoBERTa, BART | `<s> a </s>` | `<s> a </s></s> b </s>` | 0 |
| T5, ByT5, vocabularies with EOS only | `a </s>` | `a </s> b </s>` | 0 |
| Llama, Mistral | `<s> a` | `<s> a <s> b` | 0 |
| GPT, GPT-2 | `a` | `a b` | 0 |

GPT-1's fine-tuning has a template with new tokens (`gpt_transforms`).

A tokenizer.json states its own template. The tests compare them with `transformers.AutoTokenizer`.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING

from t5x_like.errors import UserError

if TYPE_CHECKING:
    import seqio
    import tokenizers


@dataclasses.dataclass(frozen=True)
class Template:
    """Special tokens around one or two texts: `prefix a suffix`, or `prefix a separator b suffix`.

    Attributes:
      prefix: ids before the first text.
      separator: ids between two texts.
      suffix: ids after the last text.
      second_type: token type of the second text and of the suffix after it; all other tokens have type 0.
      last_type: token type of the last token of the suffix; None for the type of the other suffix.
    """

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    second_type: int = 0
    last_type: int | None = None

    def special_tokens(self, *, pair: bool) -> int:
        """Returns the number of special tokens around one text, or around two."""
        return len(self.prefix) + len(self.suffix) + (len(self.separator) if pair else 0)

    def budget(self, length: int, *, pair: bool) -> int:
        """Returns the number of tokens that texts may have.

        Args:
          length: maximum length with special tokens.
          pair: whether there are two texts.

        Returns:
          The number, at least 1.

        Raises:
          UserError: `length` is too short for the special tokens.
        """
        special = self.special_tokens(pair=pair)
        if length <= special:
            raise UserError(
                f"TASK_FEATURE_LENGTHS: inputs={length} has no room for a text beside {special} special tokens. Set it "
                f"to {special + 1} or more."
            )
        return length - special


def template_of(vocabulary: "seqio.Vocabulary") -> Template:
    """Returns the template of a vocabulary, from its special tokens.

    Args:
      vocabulary: any SeqIO vocabulary. Its attribute `template`, if it has one, takes precedence.

    Returns:
      The template.

    Raises:
      UserError: the vocabulary has no special tokens that any published tokenizer places around texts.
    """
    vocabulary = getattr(vocabulary, "vocabulary", vocabulary)  # of a LateVocabulary
    template = getattr(vocabulary, "template", None)  # AutoGraph cannot convert an assignment expression
    if template is not None:
        return template
    ids = {role: _special_id(vocabulary, role) for role in ("bos", "eos", "cls", "sep")}
    if ids["cls"] is not None and ids["sep"] is not None:
        return Template((ids["cls"],), (ids["sep"],), (ids["sep"],), second_type=1)
    if ids["bos"] is not None and ids["bos"] != ids["eos"]:
        return Template(prefix=(ids["bos"],), separator=(ids["bos"],))
    if ids["eos"] is not None:
        return Template(separator=(ids["eos"],), suffix=(ids["eos"],))
    raise UserError(
        f"VOCABULARY_PATH: {type(vocabulary).__name__} has neither [CLS] and [SEP] nor BOS nor EOS to place around "
        "texts. Give the vocabulary of a published model."
    )


def of_tokenizer(tokenizer: "tokenizers.Tokenizer", path: str, *, has_token_types: bool) -> Template | None:
    """Returns the template of a tokenizer of the library `tokenizers`; None if it has no post-processor.

    Args:
      tokenizer: the tokenizer.
      path: its file, for messages.
      has_token_types: whether the tokens of a second text may have the type 1.

    Raises:
      UserError: the tokenizer encodes no text.
    """
    if tokenizer.post_processor is None:
        return None
    texts = itertools.chain("a", (tokenizer.decode([index]) for index in range(tokenizer.get_vocab_size())))
    text = next((text for text in texts if tokenizer.encode(text, add_special_tokens=False).ids), None)
    if text is None:
        raise UserError(f"{path}: its tokenizer encodes no text. Use another tokenizer.")
    single, pair = tokenizer.encode(text), tokenizer.encode(text, text)
    first, second = ([at for at, sequence in enumerate(pair.sequence_ids) if sequence == number] for number in (0, 1))
    is_special_last = single.sequence_ids[-1] is None
    last_type = single.type_ids[-1] if has_token_types and is_special_last else 0
    return Template(
        tuple(pair.ids[: first[0]]),
        tuple(pair.ids[first[-1] + 1 : second[0]]),
        tuple(pair.ids[second[-1] + 1 :]),
        second_type=pair.type_ids[second[0]] if has_token_types else 0,
        last_type=last_type or None,
    )


def _special_id(vocabulary: "seqio.Vocabulary", role: str) -> int | None:
    """Returns the id of the special token of a role, or None."""
    model = getattr(vocabulary, "tokenizer", None)
    if role in ("cls", "sep") and hasattr(model, "PieceToId"):
        piece = f"[{role.upper()}]"
        index = model.PieceToId(piece)
        return index if model.IdToPiece(index) == piece else None
    try:
        index = getattr(vocabulary, f"{role}_id", None)
    except NotImplementedError:  # seqio.ByteVocabulary has no bos_id
        return None
    return None if index is None or index < 0 else index
