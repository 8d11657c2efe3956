"""The settings of text generation."""

import dataclasses
import math
from typing import Any, Literal, get_args

from t5x_like.errors import UserError

LengthPenalty = Literal["power", "gnmt"]
EarlyStopping = Literal[False, True, "never"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """How text is generated: greedily by default, by beam search, or by sampling.

    `docs/decoding.md` has an example of each setting. Names and meanings follow `generate` in transformers,
    except for `temperature`, whose 0 is greedy as in T5X. A comment above each field documents it.

    Raises:
      UserError: A value is invalid, or two settings contradict each other.
    """

    # Maximum number of generated tokens, EOS included. None: the length of `targets` in TASK_FEATURE_LENGTHS.
    max_length: int | None = None
    # Number of generated tokens before the first EOS is allowed.
    min_length: int = 0
    # Number of hypotheses of beam search; 1: no beam search. T5 and BART use 4 for summaries and translations.
    beams: int = 1
    # What the log-probability of a hypothesis is divided by. 'power': length**alpha, as in transformers. 'gnmt':
    # ((5 + length) / 6)**alpha (Wu et al. 2016, equation 14), as in T5X.
    length_penalty: LengthPenalty = "power"
    # Exponent of the length penalty. 0: none. Larger values prefer longer texts. T5X and GNMT use 0.6 with 'gnmt'.
    alpha: float = 1.0
    # When beam search ends a row that has `beams` finished hypotheses. False: if the best open one, with the penalty of
    # its current length, cannot replace any of them. True: at once. 'never': if no open one can replace any of them at
    # any length up to `max_length`.
    early_stopping: EarlyStopping = False
    # Length of the n-grams that may occur only once. 0: no limit. A decoder also counts n-grams of the prompt.
    no_repeat_ngram_size: int = 0
    # Factor against tokens that occurred before: positive logits are divided by it, negative ones multiplied (Keskar et
    # al. 2019, section 4.1). 1: none. A decoder counts the tokens of the prompt too.
    repetition_penalty: float = 1.0
    # First generated token, such as the language of a multilingual model. None: any token.
    forced_bos_id: int | None = None
    # Last token of a text that reaches the maximum length. None: any token.
    forced_eos_id: int | None = None
    # Tokens that end a text. None: EOS of the vocabulary or of the model. Empty: texts end at `max_length`.
    eos_ids: tuple[int, ...] | None = None
    # First input of an encoder-decoder's decoder. None: BOS of the objective. Prompts of decoders have their own BOS.
    bos_id: int | None = None
    # Divisor of the logits before a token is sampled. 0: no sampling; the most probable token is selected.
    temperature: float = 0.0
    # Number of the most probable tokens to sample from. 0: all (Fan et al. 2018).
    top_k: int = 0
    # Tokens are sampled from the smallest set of the most probable ones, after `top_k`, whose probability reaches this
    # sum. 1: all (Holtzman et al. 2020).
    top_p: float = 1.0
    # Number of texts per input, ordered by score: of beam search, the best ones of `beams`; otherwise sampled texts.
    samples: int = 1
    # Strings that end a text. The text is cut before the first of them, after it is decoded.
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("eos_ids", "stop_strings"):
            if isinstance(getattr(self, name), list):  # gin passes lists
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_fields()
        self._check_combinations()

    def _check_fields(self) -> None:
        for name in ("beams", "samples"):
            self._check(name, _is_integer(getattr(self, name), 1), "not a positive integer. Give 1 or more.")
        for name in ("min_length", "no_repeat_ngram_size", "top_k"):
            self._check(name, _is_integer(getattr(self, name), 0), "not a non-negative integer. Give 0 for no limit.")
        if self.max_length is not None:
            self._check(
                "max_length", _is_integer(self.max_length, 1), "not a positive integer. Give a number of tokens."
            )
        for name in ("forced_bos_id", "forced_eos_id", "bos_id"):
            value = getattr(self, name)
            self._check(name, value is None or _is_integer(value, 0), "not a token id. Give an id, or None.")
        self._check(
            "eos_ids",
            self.eos_ids is None
            or isinstance(self.eos_ids, tuple)
            and all(_is_integer(each, 0) for each in self.eos_ids),
            "not a list of token ids. Give a list such as [1], or None.",
        )
        for name, allowed in (("length_penalty", get_args(LengthPenalty)), ("early_stopping", get_args(EarlyStopping))):
            # 0 and 1 equal False and True.
            value = getattr(self, name)
            known = any(value is each or isinstance(value, str) and value == each for each in allowed)
            self._check(name, known, f"unknown. Give one of {', '.join(map(repr, allowed))}.")
        self._check("alpha", _is_number(self.alpha), "not a number. Give 0 for no length penalty.")
        self._check(
            "repetition_penalty",
            _is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "not a positive number. Give 1 for no penalty, or more.",
        )
        self._check(
            "temperature",
            _is_number(self.temperature) and self.temperature >= 0,
            "not a non-negative number. Give 0 for the most probable token, 1 to sample from the model's distribution.",
        )
        self._check("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "not in (0, 1]. Give 1 for all tokens.")
        self._check(
            "stop_strings",
            isinstance(self.stop_strings, tuple) and all(isinstance(each, str) and each for each in self.stop_strings),
            "not a list of strings that are not empty. Give a list such as ['\\n\\n'].",
        )

    def _check_combinations(self) -> None:
        sampled = self.temperature > 0
        self._check(
            "temperature",
            not (sampled and self.beams > 1),
            f"sampling does not combine with beams={self.beams}. Give temperature=0, or beams=1.",
        )
        for name, off in (("top_k", 0), ("top_p", 1)):
            self._check(
                name,
                sampled or getattr(self, name) == off,
                f"only affects sampling. Give a temperature, or {name}={off}.",
            )
        if not sampled:
            self._check(
                "samples",
                self.samples <= self.beams,
                f"more than beams={self.beams}. Give as many beams, or a temperature to sample.",
            )
        if self.max_length is not None:
            self._check(
                "min_length",
                self.min_length <= self.max_length,
                f"more than max_length={self.max_length}. Give less, or a larger max_length.",
            )

    def _check(self, name: str, holds: bool, problem: str) -> None:
        if not holds:
            raise UserError(f"Decoding.{name}={getattr(self, name)!r}: {problem}")

    def resolve(self, *, max_length: int, eos_ids: tuple[int, ...], bos_id: int) -> "Decoding":
        """Fills the settings that are None.

        Args:
          max_length: Maximum number of generated tokens.
          eos_ids: Tokens that end a text.
          bos_id: First input of an encoder-decoder's decoder.

        Returns:
          Settings for `generate`.
        """
        given = {"max_length": max_length, "eos_ids": eos_ids, "bos_id": bos_id}
        return dataclasses.replace(
            self, **{name: value for name, value in given.items() if getattr(self, name) is None}
        )


def _is_integer(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
