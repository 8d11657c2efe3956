"""UL2's mixture of denoisers (Tay et al. 2022, table 1), each with a token in front of its inputs that says which mode.

R-denoisers take out short spans and few tokens, X-denoisers long spans or many tokens, the S-denoiser the end of the
text. How often each kind is drawn is up to the user of the mixture: a rate for each denoiser of the kind, relative to
the other denoisers' rates.

    task_arguments = {"r_rate": 1.0, "s_rate": 2.0, "x_rate": 0.5}
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import seqio

from data_tasks import preprocessors
from data_tasks.denoising import denoise, parse_recipe
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

# The recipes of each mode, with spans of 3 tokens, of 8 and of 64 on average. The S-denoiser takes out a quarter of the
# text on average, all that follows a random prefix.
DENOISERS: Mapping[str, Sequence[str]] = {
    "r": ("span_3_15_u_u", "span_8_15_u_u"),
    "s": ("prefix_25_d_d",),
    "x": ("span_3_50_u_u", "span_8_50_u_u", "span_64_15_u_u", "span_64_50_u_u"),
}


def mode_id(vocabulary: seqio.Vocabulary, mode: str) -> int:
    """The id in front of the inputs of a mode where none is given: `r`, `s`, `x` have the lowest of the extra ids."""
    return vocabulary.vocab_size - vocabulary.extra_ids + list(DENOISERS).index(mode)


def add_ul2_mixture(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    mode_ids: Mapping[str, int] | None = None,
    rates: Mapping[str, float] | None = None,
    text_feature: str = "text",
) -> seqio.Mixture:
    """A mixture of seven denoising tasks over one corpus, and the tasks themselves, `<name>_<mode>_<recipe>`.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with an EOS and with sentinels (`extra_ids`).
      mode_ids: the id that says the mode, for each of `r`, `s`, `x`; by default three of the vocabulary's extra ids,
        which are no sentinels then.
      rates: how often each denoiser of a mode is drawn, 1 by default: the defaults of the task arguments `r_rate`,
        `s_rate` and `x_rate`.
      text_feature: the feature of the source that holds the text.

    Raises:
      UserError: a mode has no id or there is no such mode, a rate is below 0, or there are too few extra ids.
    """
    rates = {mode: 1.0 for mode in DENOISERS} | dict(rates or {})
    if set(rates) != set(DENOISERS) or min(rates.values()) < 0:
        raise UserError(f"{name}: rates={rates} must give numbers, none below 0, for {', '.join(DENOISERS)} alone")
    if mode_ids is not None and set(mode_ids) != set(DENOISERS):
        raise UserError(f"{name}: mode_ids={dict(mode_ids)} must give an id for each of {', '.join(DENOISERS)}")
    if mode_ids is None and vocabulary.extra_ids <= len(DENOISERS):
        raise UserError(
            f"{name}: {vocabulary.extra_ids} extra ids do not suffice for {len(DENOISERS)} modes and a sentinel: use a "
            "vocabulary with more extra_ids, or give mode_ids"
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
            seqio.TaskRegistry.add(
                task,
                source=source,
                preprocessors=[
                    functools.partial(preprocessors.documents, text_feature=text_feature),
                    preprocessors.tokenize,
                    seqio.CacheDatasetPlaceholder(),
                    corrupt,
                ],
                output_features={feature: seqio.Feature(vocabulary) for feature in ("inputs", "targets")},
            )
            values = task_arguments.declare(task, **defaults)
            tasks.append((task, functools.partial(_rate, values, f"{mode}_rate")))
    return seqio.MixtureRegistry.add(name, tasks)


def _prefix_ids(mode: str, mode_ids: Mapping[str, int] | None) -> Callable[[seqio.Vocabulary], Sequence[int]]:
    if mode_ids is not None:
        return lambda vocabulary: (mode_ids[mode],)
    return lambda vocabulary: (mode_id(vocabulary, mode),)


def _rate(values: task_arguments.Arguments, argument: str, task: seqio.Task) -> float:
    if values[argument] < 0:
        raise UserError(f"task_arguments: {argument}={values[argument]} of {task.name} must not be below 0")
    return values[argument]
