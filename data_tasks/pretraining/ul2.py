"""Mixtures of denoisers: UL2's (Tay et al. 2022, table 1), and T5Gemma 2's.

In UL2, a token before the inputs indicates the mode of a denoiser.

R-denoisers remove few tokens in short spans, X-denoisers remove long spans or many tokens, and the S-denoiser removes
the end of the text. The user of the mixture sets a sampling rate per mode, relative to the other modes. It
applies to each denoiser of the mode.

    task_arguments = {"r_rate": 1.0, "s_rate": 2.0, "x_rate": 0.5}
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import seqio

from data_tasks.documents_task import add_task, text_features
from data_tasks.pretraining.denoising import add_denoising_task, denoise, parse_recipe
from t5x_like.data import task_arguments
from t5x_like.errors import UserError
from t5x_like.vocabularies.sentinels import sentinel_ids

# The recipes of each mode, with mean span lengths of 3, 8 and 64 tokens. The S-denoiser removes all tokens after a
# random prefix, a quarter of the text on average.
DENOISERS: Mapping[str, Sequence[str]] = {
    "r": ("span_3_15_u_u", "span_8_15_u_u"),
    "s": ("prefix_25_d_d",),
    "x": ("span_3_50_u_u", "span_8_50_u_u", "span_64_15_u_u", "span_64_50_u_u"),
}
# Recipe -> its sampling rate. The last one removes the last three quarters of a chunk.
T5GEMMA_2: Mapping[str, float] = {
    "span_3_15_u_u": 1.0,
    "span_12_50_u_u": 1.0,
    "span_32_15_u_u": 1.0,
    "span_32_50_u_u": 1.0,
    "end_75_u_u": 4.0,
}


def mode_id(vocabulary: seqio.Vocabulary, mode: str) -> int:
    """Returns the default id of a mode: `r`, `s` and `x` are the last three sentinels, from the last one on."""
    return sentinel_ids(vocabulary)[-1 - list(DENOISERS).index(mode)]


def add_ul2_mixture(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    mode_ids: Mapping[str, int] | None = None,
    rates: Mapping[str, float] | None = None,
    text_feature: str = "text",
) -> seqio.Mixture:
    """Registers seven denoising tasks over one corpus, `<name>_<mode>_<recipe>`, and a mixture of them.

    Args:
      name: the mixture name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS and sentinels (`extra_ids`).
      mode_ids: the ids that indicate the modes `r`, `s` and `x`. Default: the last three of the vocabulary's
        sentinels, which are then not used as such.
      rates: sampling rate of each denoiser by mode, 1 by default. These are the defaults of the task arguments
        `r_rate`, `s_rate` and `x_rate`.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered mixture.

    Raises:
      UserError: a mode is missing or unknown, a rate is not a finite nonnegative number, or the vocabulary has too few
        extra ids.
    """
    rates = {mode: 1.0 for mode in DENOISERS} | dict(rates or {})
    if set(rates) != set(DENOISERS) or not all(0 <= rate < math.inf for rate in rates.values()):
        raise UserError(
            f"{name}: rates={rates} must give finite nonnegative numbers for the modes {', '.join(DENOISERS)}"
        )
    if mode_ids is not None and set(mode_ids) != set(DENOISERS):
        raise UserError(
            f"{name}: mode_ids={dict(mode_ids)} must give an id for each of the modes {', '.join(DENOISERS)}"
        )
    if mode_ids is None and vocabulary.extra_ids <= len(DENOISERS):
        raise UserError(
            f"{name}: {vocabulary.extra_ids} extra ids are too few for {len(DENOISERS)} modes and a sentinel. Use a "
            "vocabulary with more extra_ids, or give mode_ids."
        )
    defaults = {f"{mode}_rate": float(rate) for mode, rate in rates.items()}
    tasks = []
    for mode, recipes in DENOISERS.items():
        for recipe in recipes:
            task = f"{name}_{mode}_{recipe}"
            corrupt = functools.partial(
                denoise,
                recipe=parse_recipe(recipe),
                prefix_ids=_prefix_ids(mode, mode_ids),
                reserved_sentinels=0 if mode_ids else len(DENOISERS),
            )
            features = text_features(vocabulary, "inputs", "targets")
            add_task(task, source, [corrupt], features, text_feature=text_feature)
            values = task_arguments.declare(task, **defaults)
            tasks.append((task, functools.partial(_rate, values, f"{mode}_rate")))
    return seqio.MixtureRegistry.add(name, tasks)


def add_t5gemma_2_mixture(
    name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *, text_feature: str = "text"
) -> seqio.Mixture:
    """Registers five denoising tasks over one corpus, `<name>_<recipe>`, and a mixture of them at T5Gemma 2's rates.

    Source: arXiv:2512.14856. No token indicates the denoiser.

    Args:
      name: the mixture name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS and sentinels (`extra_ids`).
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered mixture.
    """
    rates = []
    for recipe, rate in T5GEMMA_2.items():
        task = f"{name}_{recipe}"
        add_denoising_task(task, source, vocabulary, recipe, text_feature=text_feature)
        rates.append((task, rate))
    return seqio.MixtureRegistry.add(name, rates)


def _prefix_ids(mode: str, mode_ids: Mapping[str, int] | None) -> Callable[[seqio.Vocabulary], Sequence[int]]:
    if mode_ids is not None:
        return lambda vocabulary: (mode_ids[mode],)
    return lambda vocabulary: (mode_id(vocabulary, mode),)


def _rate(values: task_arguments.Arguments, argument: str, task: seqio.Task) -> float:
    if not 0 <= values[argument] < math.inf:
        raise UserError(
            f"TASK_ARGUMENTS: {argument}={values[argument]} of {task.name} is not a finite nonnegative number. Give a "
            "number."
        )
    return values[argument]
