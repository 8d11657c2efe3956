"""SentencePiece vocabularies with the special pieces of published models, for models that are trained from scratch.

The ids and the settings of the trainer are those of the released code: google-research/albert, zihangdai/xlnet,
google-research/bigbird, and mT5 (Xue et al. 2021, section 3.2).
"""

import dataclasses
import io
import itertools
import json
from collections.abc import Callable, Iterable

import sentencepiece

from t5x_like.vocabularies import text_rules
from t5x_like.vocabularies.tokenizer_folder import CONFIG

# Both ALBERT and XLNet make these characters pieces of their own.
_PUNCTUATION = (".", "(", ")", '"', "-", "–", "£", "€")
_BIGBIRD_SPECIAL = {65: "[CLS]", 66: "[SEP]", 67: "[MASK]"}
_BIGBIRD_UNKNOWN = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The special pieces of a vocabulary, and how its trainer is set.

    Attributes:
      ids: role (`pad`, `unk`, `bos`, `eos`) -> id; -1 for none.
      control: control symbols, which no text contains, in the order of their ids.
      user_defined: pieces that are never merged with others.
      coverage: fraction of the characters of the text that have a piece.
      byte_fallback: whether other characters are encoded as bytes, not as the unknown piece.
      rules: changes text before training and encoding, given `lower_case`; None to change none.
      lower_case: the default of `lower_case`; None if the vocabulary cannot be lower-cased.
      tokenizer: settings of `tokenizer_config.json`.
      file: name of the model file.
    """

    ids: dict[str, int]
    control: tuple[str, ...] = ()
    user_defined: tuple[str, ...] = ()
    coverage: float = 0.99995
    byte_fallback: bool = False
    rules: Callable[[bool], Callable[[str], str]] | None = None
    lower_case: bool | None = None
    tokenizer: dict[str, object] = dataclasses.field(default_factory=dict)
    file: str = "spiece.model"


LAYOUTS: dict[str, Layout] = {
    "albert": Layout(
        ids={"pad": 0, "unk": 1, "bos": -1, "eos": -1},
        control=("[CLS]", "[SEP]", "[MASK]"),
        user_defined=_PUNCTUATION,
        rules=text_rules.albert,
        lower_case=True,
        tokenizer={"tokenizer_class": "AlbertTokenizer"},
    ),
    "xlnet": Layout(
        ids={"unk": 0, "bos": 1, "eos": 2, "pad": -1},
        control=("<cls>", "<sep>", "<pad>", "<mask>", "<eod>"),
        user_defined=("<eop>", *_PUNCTUATION),
        rules=text_rules.albert,  # XLNet changes text in the same way
        lower_case=False,
        tokenizer={"tokenizer_class": "XLNetTokenizer"},
    ),
    "bigbird": Layout(
        ids={"pad": 0, "eos": 1, "bos": 2, "unk": _BIGBIRD_UNKNOWN},
        control=tuple(_BIGBIRD_SPECIAL.get(index, f"<unused_{index}>") for index in range(3, _BIGBIRD_UNKNOWN)),
        tokenizer={"tokenizer_class": "BigBirdTokenizer"},
    ),
    "mt5": Layout(
        ids={"pad": 0, "eos": 1, "unk": 2, "bos": -1},
        coverage=0.99999,
        byte_fallback=True,
        tokenizer={"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    ),
}
"""Kind of vocabulary -> layout."""


def train(documents: Iterable[str], size: int, layout: Layout, lower_case: bool, threads: int) -> dict[str, bytes]:
    """Trains a unigram model with the pieces of a layout.

    Args:
      documents: text to train on.
      size: number of pieces, including special ones.
      layout: the special pieces.
      lower_case: whether the rules of the layout lower-case text.
      threads: number of threads of the trainer. The model may depend on it.

    Returns:
      The files of a Hugging Face directory.

    Raises:
      RuntimeError: SentencePiece cannot produce this number of pieces from this text.
    """
    model = io.BytesIO()
    if layout.rules is not None:
        documents = map(layout.rules(lower_case), documents)
    # The trainer takes a line as a sentence.
    lines = itertools.chain.from_iterable(document.splitlines() for document in documents)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=layout.coverage,
        byte_fallback=layout.byte_fallback,
        control_symbols=list(layout.control),
        user_defined_symbols=list(layout.user_defined),
        max_sentence_length=1 << 20,
        num_threads=threads,
        minloglevel=2,
        **{f"{role}_id": index for role, index in layout.ids.items()},
    )
    settings = layout.tokenizer | ({} if layout.lower_case is None else {"do_lower_case": lower_case})
    return {layout.file: model.getvalue(), CONFIG: (json.dumps(settings, indent=2) + "\n").encode()}
