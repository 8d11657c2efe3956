"""What stands before the inputs of an example, and between its inputs and targets.

A source sets it while the preprocessors of a text-to-text task are built: the same task ends its inputs with EOS for an
encoder, and with the separator of the objective for a decoder. An encoder may read BOS in place of this EOS, which is a
role of its feature, so that it holds for every task and for stored data. Inputs without EOS get one first.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.data.source import DataSource

Preprocessor = TypeVar("Preprocessor", bound=Callable)
INPUTS, _ENCODER = "inputs", "encoder_input_tokens"


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """How a decoder reads a prompt.

    Attributes:
      bos_id: The token before it; None for no token.
      has_pairs: Whether a response follows the prompt, rather than any text.
      separator: The text between the two; None for EOS.
    """

    bos_id: int | None
    has_pairs: bool = False
    separator: str | None = ""


_SEPARATOR: contextvars.ContextVar[str | None] = contextvars.ContextVar("separator", default=None)


@contextlib.contextmanager
def separated(separator: str | None) -> Iterator[None]:
    """Sets the text after the inputs of the text-to-text tasks that are built in this context.

    Args:
      separator: The text, which may be empty; None for EOS.
    """
    token = _SEPARATOR.set(separator)
    try:
        yield
    finally:
        _SEPARATOR.reset(token)


def reads_separator(preprocessor: Preprocessor) -> Preprocessor:
    """Declares that a preprocessor of SeqIO ends `inputs` with `separator()`, and with EOS if it is None; a decorator.

    The declaration is the attribute `reads_separator` of the preprocessor.
    """
    preprocessor.reads_separator = True
    return preprocessor


def separator() -> str | None:
    """Returns the text after the inputs; None for EOS."""
    return _SEPARATOR.get()


def _reads(preprocessor: Callable) -> bool:
    return getattr(preprocessor, "reads_separator", False)


def _is_read(source: "DataSource") -> bool:
    """Returns whether a source has SeqIO tasks whose preprocessors read the separator of the objective."""
    tasks = getattr(source, "tasks", ())
    return bool(tasks) and all(any(map(_reads, task.preprocessors)) for task in tasks)


def add_eos(source: "DataSource", spec: FeatureSpec) -> Mapping[str, bool]:
    """Returns task feature -> whether its text ends in EOS, for an objective with a separator, too.

    Args:
      source: The data.
      spec: Features that the objective reads.
    """
    if encoder_bos(spec) is not None:
        return {**source.add_eos(), INPUTS: True}
    separates = spec.separator is not None and _is_read(source)
    return {**source.add_eos(), **({INPUTS: False} if separates else {})}


def with_encoder_bos(spec: FeatureSpec) -> FeatureSpec:
    """Returns the features of an encoder-decoder whose encoder reads BOS, and `inputs` without the EOS at their end."""
    features = tuple(
        dataclasses.replace(each, role="shifted") if each.name == _ENCODER else each for each in spec.features
    )
    return dataclasses.replace(spec, features=features)


def encoder_bos(spec: FeatureSpec) -> int | None:
    """Returns the BOS that an encoder reads before `inputs`, which then have no EOS; None if it reads none."""
    begins = any(each.name == _ENCODER and each.role == "shifted" for each in spec.features)
    return spec.bos_id if begins else None


def missing_eos(source: "DataSource", spec: FeatureSpec) -> int | None:
    """Returns the EOS to add to inputs without one, where BOS then takes its place; None if nothing is to be added.

    Raises:
      UserError: The vocabulary has no EOS.
    """
    if encoder_bos(spec) is None or source.add_eos().get(INPUTS, True):
        return None
    if (eos_id := source.vocabularies()[INPUTS].eos_id) is None:
        raise UserError(
            f"ENCODER_BOS=True: BOS takes the place of the EOS of inputs, and the vocabulary of {source.name} has no "
            "EOS. Give a vocabulary that has one, or ENCODER_BOS=False."
        )
    return eos_id


def check(source: "DataSource", spec: FeatureSpec) -> None:
    """Checks that tasks which end their inputs by themselves, perhaps in EOS, get no other text there.

    Raises:
      UserError: The objective has a text that a task does not read.
    """
    if spec.separator and not _is_read(source):
        raise UserError(
            f"SEPARATOR={spec.separator!r}: {source.name} ends its inputs by itself. Add the text in its "
            "preprocessors, or register it with data_tasks.downstream.text_to_text."
        )
