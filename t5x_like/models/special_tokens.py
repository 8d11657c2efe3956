"""The special token ids that come with published weights and leave with them."""

import dataclasses
from collections.abc import Mapping

from t5x_like.errors import UserError

SUFFIX = "_token_id"

# One id, several of equal meaning, or a key that is there without a value.
Id = int | tuple[int, ...] | None
Ids = tuple[tuple[str, Id], ...]


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Ids by the keys of Hugging Face, such as `bos_token_id`, `eos_token_id` or `decoder_start_token_id`.

    A key without a value (None) means that the model has no such token; a missing key means transformers' default for
    the family. Both are kept as found, so that exported files say what the imported ones said.

    Attributes:
      config: pairs of key and id of config.json; a dict is accepted too.
      generation: those of generation_config.json, which `generate` prefers; None without that file.
    """

    config: Ids = ()
    generation: Ids | None = None

    def __post_init__(self):
        object.__setattr__(self, "config", _pairs(self.config))
        if self.generation is not None:
            object.__setattr__(self, "generation", _pairs(self.generation))


def _pairs(ids: Ids | Mapping[str, Id]) -> Ids:
    """The pairs in hashable form.

    Raises:
      UserError: a key does not end in `_token_id`, or a value is not an id.
    """
    found = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in dict(ids).items())
    for key, value in found:
        if not key.endswith(SUFFIX):
            raise UserError(f"{key}: not the name of a special token. Give names such as 'bos{SUFFIX}'")
        several = isinstance(value, tuple) and "eos" in key  # only of ends there may be several
        tokens = value if several else (value,)
        if value is not None and not all(type(token) is int and abs(token) < 2**31 for token in tokens):
            raise UserError(f"{key} {value!r}: must be a token id{', a list of them,' if 'eos' in key else ''} or null")
    return found
