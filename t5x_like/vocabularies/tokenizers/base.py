"""What a tokenizer of transformers is: names of files, special tokens, and the function that builds its vocabulary."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.base import Vocabulary

CONFIG, TOKENIZER, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"
ADDED_TOKENS, MODEL_CONFIG, CHAT_TEMPLATE = "added_tokens.json", "config.json", "chat_template.jinja"
WORDPIECE, BPE_IDS, BPE_MERGES = "vocab.txt", "vocab.json", "merges.txt"

GENERIC = "PreTrainedTokenizer"
"""The class of a tokenizer that its tokenizer.json defines alone."""

BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
DEBERTA = {**BERT, "bos": "[CLS]", "eos": "[SEP]"}
ALBERT = {**DEBERTA, "unk": "<unk>", "pad": "<pad>"}
GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
XLNET = {role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")} | {"bos": "<s>", "eos": "</s>"}
"""Role -> special token, for several tokenizers."""

PUNCTUATION = (".", "(", ")", '"', "-", "–", "£", "€")
"""The characters that both ALBERT and XLNet make pieces of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """A class of transformers.

    Attributes:
      name: Its name, without the suffix "Fast".
      files: The files that define its vocabulary. A tokenizer.json takes their place.
      special_tokens: Role -> the special token that it has if the files name none.
      model_types: Values of `model_type` in config.json whose directories have this class if tokenizer_config.json
        names none.
      has_token_types: Whether it gives the tokens of a second text another type, if the file says so.
      convert: Returns the tokenizer of a directory without tokenizer.json, given its `tokenizer_folder.TokenizerFiles`.
      check: Checks settings that the files of a directory may contradict.
      build: Returns the vocabulary of a directory, in place of `from_folder.build`, which calls the other two.
    """

    name: str
    files: tuple[str, ...] = ()
    special_tokens: Mapping[str, str]
    model_types: tuple[str, ...] = ()
    has_token_types: bool = True
    convert: "Callable[..., tokenizers.Tokenizer] | None" = None
    check: Callable[..., object] | None = None
    build: "Callable[..., Vocabulary] | None" = None


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
