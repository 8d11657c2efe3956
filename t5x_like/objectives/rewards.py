"""Rewards of generated texts: Python functions of a user, called on the host."""

import dataclasses
import functools
import importlib
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.recorded import recorded
from t5x_like.runtime import host_functions
from t5x_like.vocabularies.from_folder import from_folder

Text = str | list[int]
# Rewards are float32 on the device.
_LARGEST = float(np.finfo(np.float32).max)


@recorded
@dataclasses.dataclass(frozen=True)
class Rewards:
    """The weighted sum of reward functions. A comment above each field documents it.

    A function is called with three lists of the same length, `prompts`, `completions` and `answers`, and returns one
    finite number per completion. A result has to depend on these texts alone, so that a run can resume.
    """

    # Functions as `MODULE.FUNCTION`, each with its weight. Modules are found in the working directory as well.
    functions: Mapping[str, float]
    # A Hugging Face directory, by whose tokenizer functions get texts, without special tokens. None: they get lists of
    # token ids.
    vocabulary_path: str | None = None

    def __post_init__(self):
        if not isinstance(self.functions, Mapping) or not self.functions:
            raise UserError(
                f"REWARDS={self.functions!r}: not a dictionary of functions. Give such as {{'my_rewards.length': 1.0}}."
            )
        for name, weight in self.functions.items():
            if not isinstance(name, str):
                raise UserError(f"REWARDS: {name!r} is not a name. Give a function as 'MODULE.FUNCTION'.")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise UserError(f"REWARDS: the weight {weight!r} of {name!r} is not a finite number. Give such as 1.0.")

    def load(self) -> dict[str, Callable[..., Sequence[float]]]:
        """Returns the functions by name.

        Raises:
          UserError: A module or a function is not found.
        """
        return {name: _load(name) for name in self.functions}

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
    ) -> list[float]:
        """Returns the reward of each completion. Without completions, no function is called.

        Args:
          prompts: Token ids of the prompts.
          completions: Token ids of their completions, EOS included.
          answers: Token ids of the answers of the task, perhaps empty.

        Raises:
          UserError: A function raises an error, returns another number of rewards, or one that float32 cannot hold.
        """
        if not completions:  # a device whose rows are all padding
            return []
        decode = list if self.vocabulary_path is None else _decoder(self.vocabulary_path)
        texts = {
            "prompts": list(map(decode, prompts)),
            "completions": list(map(decode, completions)),
            "answers": list(map(decode, answers)),
        }
        total = [0.0] * len(completions)
        for name, function in self.load().items():
            values = _values(name, function, texts, self.functions[name])
            total = [before + value for before, value in zip(total, values, strict=True)]
        return total


def _load(name: str) -> Callable[..., Sequence[float]]:
    module, _, function = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"REWARDS: {name!r} not found ({error}). Give a function as 'MODULE.FUNCTION'.") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"REWARDS: importing {module!r} raised {_described(error)}. Correct the module.") from error
    if not callable(found):
        raise UserError(f"REWARDS: {name!r} is not a function. Give a function as 'MODULE.FUNCTION'.")
    return found


def _values(name: str, function: Callable[..., Any], texts: Mapping[str, Sequence[Text]], weight: float) -> list[float]:
    """Returns the weighted rewards of a function, which may change its lists."""
    try:
        found = function(**{key: list(each) for key, each in texts.items()})
        if isinstance(found, Mapping | Set):  # their order is not that of the completions
            raise TypeError(f"the result is a {type(found).__name__}, not a list")
        found = list(found)
    except (Exception, SystemExit) as error:
        raise UserError(f"REWARDS: {name!r} raised {_described(error)}. Correct the function.") from error
    count = len(texts["completions"])
    if len(found) != count:
        raise UserError(
            f"REWARDS: {name!r} returned {len(found)} rewards for {count} completions. Return one per completion."
        )
    for completion, value in zip(texts["completions"], found, strict=True):
        try:
            is_finite = math.isfinite(value) and abs(weight * float(value)) <= _LARGEST
        except (TypeError, OverflowError):  # not a number, or an integer that no float can hold
            is_finite = False
        if not is_finite:
            raise UserError(
                f"REWARDS: {name!r} returned {value!r:.40} for the completion {completion!r:.60}. Return a number that "
                f"is finite in float32, also times its weight {weight:g}."
            )
    return [weight * float(value) for value in found]


def _described(error: BaseException) -> str:
    """Returns an error with the line of the user's file that raised it, or called what raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen importlib")
    ]
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    place = f" ({os.path.basename(frames[0].filename)}, line {lines[-1]})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


@functools.lru_cache(maxsize=2)
def _decoder(path: str) -> Callable[[Sequence[int]], str]:
    vocabulary = from_folder(path)
    # `decode` stops at EOS, which may also end the earlier turns of a prompt.
    special = {getattr(vocabulary, f"{role}_id", None) for role in ("bos", "eos", "pad")}
    return lambda ids: vocabulary.decode([token for token in ids if token not in special])


def on_host(
    rewards: Rewards,
    prompts: Int[Array, "batch prompt"],
    prompt_lengths: Int[Array, " batch"],
    completions: Int[Array, "batch samples completion"],
    lengths: Int[Array, "batch samples"],
    answers: Int[Array, "batch answer"],
    answer_lengths: Int[Array, " batch"],
) -> Float[Array, "batch samples"]:
    """Returns the rewards of completions in a compiled program, 0 for those of empty prompts.

    The functions are called as `host_functions.call` says, so that the samples of a prompt are in one call.

    Args:
      rewards: The reward functions.
      prompts: Token ids, with padding at the end.
      prompt_lengths: Number of tokens of each prompt; 0 for padding.
      completions: Token ids of the samples of each prompt.
      lengths: Number of tokens of each sample.
      answers: Token ids of the answers.
      answer_lengths: Number of tokens of each answer.

    Raises:
      UserError: The program raises the errors of `Rewards`.
    """

    def reward(prompts, prompt_lengths, completions, lengths, answers, answer_lengths) -> np.ndarray:
        places = [(row, sample) for row, sample in np.ndindex(lengths.shape) if prompt_lengths[row]]
        found = rewards(
            [prompts[row, : prompt_lengths[row]].tolist() for row, _ in places],
            [completions[row, sample, : lengths[row, sample]].tolist() for row, sample in places],
            [answers[row, : answer_lengths[row]].tolist() for row, _ in places],
        )
        values = np.zeros(lengths.shape, np.float32)
        for place, value in zip(places, found, strict=True):
            values[place] = value
        return values

    arrays = (prompts, prompt_lengths, completions, lengths, answers, answer_lengths)
    return host_functions.call(reward, jax.ShapeDtypeStruct(lengths.shape, np.float32), *arrays)
