"""The special token ids of imported weights, which are kept for export."""

import dataclasses
from collections.abc import Mapping

from t5x_like.errors import UserError

SUFFIX = "_token_id"

# One id, several ids of equal meaning, or a key with the value null.
Id = int | tuple[int, ...] | None
Ids = tuple[tuple[str, Id], ...]


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Token ids by Hugging Face keys such as `bos_token_id`, `eos_token_id` or `decoder_start_token_id`.

    The value None means that the model does not have the token. A missing key means transformers' default for the
    family. Both are kept, so that exported files equal the imported ones.

    Attributes:
      config: Pairs of key and id in config.json; a dict is accepted too.
      generation: Pairs in generation_config.json, which take precedence in `generate`; None without that file.
    """

    config: Ids = ()
    generation: Ids | None = None

    def __post_init__(self):
        object.__setattr__(self, "config", _pairs(self.config))
        if self.generation is not None:
            object.__setattr__(self, "generation", _pairs(self.generation))


def sampling_eos_ids(tokens: SpecialTokens | None, eos_id: int | None) -> tuple[int, ...]:
    """Returns the tokens that end a text that a model samples in a training step.

    Args:
      tokens: Special tokens of the model; None for a model that has not been imported.
      eos_id: The setting SAMPLE_EOS_ID; None: each EOS of the model, as `generate` in transformers reads it.

    Raises:
      UserError: Neither tells one.
    """
    named = {} if tokens is None else dict(tokens.config) | dict(tokens.generation or ())
    found = named.get("eos_token_id") if eos_id is None else eos_id
    if found is None:
        raise UserError("SAMPLE_EOS_ID=None: the model has no eos_token_id. Give the id that ends a sample.")
    return found if isinstance(found, tuple) else (found,)


def _pairs(ids: Ids | Mapping[str, Id]) -> Ids:
    """Converts ids to a hashable form.

    Raises:
      UserError: A key does not end in `_token_id`, or a value is not an id.
    """
    found = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in dict(ids).items())
    for key, value in found:
        if not key.endswith(SUFFIX):
            raise UserError(f"{key}: not a special token key. Give keys such as 'bos{SUFFIX}'.")
        several = isinstance(value, tuple) and "eos" in key  # only EOS may have several ids
        tokens = value if several else (value,)
        if value is not None and not all(type(token) is int and abs(token) < 2**31 for token in tokens):
            raise UserError(f"{key} {value!r}: must be a token id{', a list of them,' if 'eos' in key else ''} or null")
    return found
