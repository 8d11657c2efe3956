"""T5's denoisers by their names, `<pattern>_<percent>_<inputs>_<targets>` (Raffel et al. 2020, section 3.3).

`iid_15_u_u` is the baseline of the paper, `span_3_15_u_u` what the released models were trained on, `iid_15_r10s90_f`
BERT's, `iid_15_m_f` MASS's, `iid_15_d_d` drops tokens, `all_permute` has a whole chunk put in order.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import seqio
import tensorflow as tf

from data_tasks import language_model, noise_masks, preprocessors, token_encodings
from data_tasks.token_encodings import Encoding, Ids, Rows
from t5x_like.data import span_lengths
from t5x_like.errors import UserError

GRAMMAR = """lm, prefix_lm, all_permute, or <pattern>_<percent>_<inputs>_<targets>, where
  pattern  iid (each token by itself), span_N (random spans of N tokens on average), reg_N or reg_N-M (spans of N to M
           tokens at equal distances), prefix (all after a random prefix; at most 50 percent)
  percent  how many tokens are noise, on average
  inputs   what noise becomes: m (each token a mask), r (a random token), r10s90 (a random token 10, a mask 90 times in
           100), g (a token of the same text), p (permuted), d (dropped), s (each span a mask), u (each span a
           sentinel of its own)
  targets  f (the whole text), d (noise alone), s or u (noise, with a mask or a sentinel for each span of the rest)"""

# How far above its mean a random count is allowed for: 99.9 % of rows have no more.
_DEVIATIONS = 3.09


class Pattern(Protocol):
    """Chooses the noise.

    Attributes:
      exact: every row of a length has as many tokens of noise.
      ends_in_noise: no row ends without noise.
    """

    exact: bool
    ends_in_noise: bool

    def __call__(self, lengths: tf.Tensor, width: int, seed: tf.Tensor) -> tf.Tensor:
        """Which tokens are noise: lengths `[rows]` -> bool `[rows, width]`."""

    def max_noise(self, length: int) -> tuple[int, int]:
        """How many tokens of noise, in how many runs, a row of that length has at most (in 99.9 % of cases)."""


@dataclasses.dataclass(frozen=True)
class Iid:
    """Each token by itself."""

    density: float
    exact = ends_in_noise = False

    def __call__(self, lengths, width, seed):
        return noise_masks.iid_mask(lengths, width, seed, self.density)

    def max_noise(self, length):
        mean_runs = self.density * (1 - self.density)  # a run begins at a token of noise after one that is none
        noise = length * self.density + _DEVIATIONS * math.sqrt(length * mean_runs)
        runs = 1 + length * mean_runs + _DEVIATIONS * math.sqrt(length * mean_runs * max(1 - 3 * mean_runs, 0))
        return min(math.ceil(noise), length), min(math.ceil(runs), length)


@dataclasses.dataclass(frozen=True)
class RandomSpans:
    """Random spans; with `random_roll` they may lie anywhere, or else the last one ends the row."""

    density: float
    mean_span: float = span_lengths.MEAN_NOISE_SPAN_LENGTH
    random_roll: bool = False
    exact = True

    @property
    def ends_in_noise(self) -> bool:
        return not self.random_roll

    def __call__(self, lengths, width, seed):
        return noise_masks.random_spans_mask(
            lengths, width, seed, self.density, self.mean_span, random_roll=self.random_roll
        )

    def max_noise(self, length):
        noise, spans = span_lengths.noise_counts(length, self.density, self.mean_span)
        return noise, spans + self.random_roll


@dataclasses.dataclass(frozen=True)
class RegularSpans:
    """Spans of one length in a row, between the two, at equal distances."""

    density: float
    min_span: int = 1
    max_span: int = 5
    exact = ends_in_noise = False

    def __call__(self, lengths, width, seed):
        return noise_masks.regular_mask(lengths, width, seed, self.density, self.min_span, self.max_span)

    def max_noise(self, length):
        counts = []
        for span in range(self.min_span, self.max_span + 1):
            whole, rest = divmod(length, round(span / self.density))
            counts.append((whole * span + min(rest, span), whole + 2))  # two runs may be cut short by the row's ends
        return max(noise for noise, _ in counts), max(runs for _, runs in counts)


@dataclasses.dataclass(frozen=True)
class AfterPrefix:
    """All that follows a random prefix."""

    density: float = 0.5
    exact, ends_in_noise = False, True

    def __call__(self, lengths, width, seed):
        return noise_masks.after_prefix_mask(lengths, width, seed, self.density)

    def max_noise(self, length):
        min_prefix = max(round((1 - 2 * self.density) * (length - 1)), 1)
        return length - min_prefix, 1


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A denoiser.

    Attributes:
      pattern: chooses the noise.
      inputs: the letter of what becomes of noise; see GRAMMAR.
      targets: the letter of what becomes of the rest.
      joined: whether documents are joined before they are cut into chunks.
    """

    pattern: Pattern
    inputs: str
    targets: str
    join_documents: bool = True

    def encode_inputs(self) -> Encoding:
        """What makes `inputs`."""
        if mixed := re.fullmatch(r"r(\d+)s(\d+)", self.inputs):
            rate = int(mixed[1]) / 100
            return functools.partial(token_encodings.noise_token_to_random_token_or_sentinel, random_prob=rate)
        return _INPUTS[self.inputs]

    def encode_targets(self) -> Encoding:
        """What makes `targets`."""
        return _TARGETS[self.targets]

    def max_lengths(self, length: int) -> tuple[int, int]:
        """Tokens of `inputs` and `targets`, at most, for a chunk of `length`, without EOS."""
        noise, runs = self.pattern.max_noise(length)
        shorter = {"d": noise, "s": noise - runs, "u": noise - runs}.get(self.inputs, 0) if self.pattern.exact else 0
        other_runs = runs + (not self.pattern.ends_in_noise)
        return length - shorter, {"f": length, "d": noise}.get(self.targets, noise + other_runs)

    @property
    def unique_sentinels(self) -> bool:
        """Whether each span has a sentinel of its own."""
        return "u" in (self.inputs, self.targets)

    def max_sentinels(self, length: int) -> int:
        """How many different sentinels a chunk of `length` needs at most."""
        if self.unique_sentinels:
            return self.pattern.max_noise(length)[1] + (not self.pattern.ends_in_noise)
        return int(self.inputs == "m" or "s" in self.inputs or self.targets == "s")


_INPUTS: Mapping[str, Encoding] = {
    "m": token_encodings.noise_token_to_sentinel,
    "r": token_encodings.noise_token_to_random_token,
    "g": token_encodings.noise_token_to_gathered_token,
    "p": token_encodings.permute_noise_tokens,
    "d": token_encodings.drop_noise_tokens,
    "s": token_encodings.noise_span_to_sentinel,
    "u": token_encodings.noise_span_to_unique_sentinel,
}
_TARGETS: Mapping[str, Encoding] = {
    "f": token_encodings.full,
    "d": token_encodings.drop_nonnoise_tokens,
    "s": token_encodings.nonnoise_span_to_sentinel,
    "u": token_encodings.nonnoise_span_to_unique_sentinel,
}

_NAME = re.compile(
    r"(?:(?P<iid>iid)|(?P<prefix>prefix)|span_(?P<span>\d+(?:\.\d+)?)|reg_(?P<least>\d+)(?:-(?P<most>\d+))?)"
    r"_(?P<percent>\d+)_(?P<inputs>[mrgpdsu]|r\d+s\d+)_(?P<targets>[fdsu])"
)


def parse_recipe(name: str, *, random_roll: bool = False) -> Recipe:
    """The denoiser of a name such as `iid_15_u_u`.

    Args:
      name: see GRAMMAR; `lm` and `prefix_lm` are no denoisers but in `preprocessor_of`.
      random_roll: let random spans lie anywhere, the row's end included.

    Raises:
      UserError: the name does not follow the grammar, which the message gives, or a number in it is out of range.
    """
    if name == "all_permute":
        return Recipe(Iid(1.0), "p", "f", join_documents=False)
    parts = _NAME.fullmatch(name)
    if not parts:
        raise UserError(f"{name!r} is no denoising recipe. There are {GRAMMAR}")
    pattern = _pattern(name, parts, random_roll)
    mixed = re.fullmatch(r"r(\d+)s(\d+)", parts["inputs"])
    if mixed and int(mixed[1]) + int(mixed[2]) != 100:
        raise UserError(f"{name!r}: {mixed[1]} and {mixed[2]} in {parts['inputs']!r} must add up to 100 percent")
    return Recipe(pattern, parts["inputs"], parts["targets"], join_documents=not isinstance(pattern, AfterPrefix))


def _pattern(name: str, parts: re.Match, random_roll: bool) -> Pattern:
    percent = int(parts["percent"])
    highest = 50 if parts["prefix"] else 99 if parts["span"] else 100
    if not 1 <= percent <= highest:
        raise UserError(f"{name!r}: {percent} percent of noise must be 1 to {highest} with this pattern")
    if random_roll and not parts["span"]:
        raise UserError(f"{name!r}: random_roll=True is for random spans, span_N_…, alone")
    density = percent / 100
    if parts["span"]:
        if float(parts["span"]) < 1:
            raise UserError(f"{name!r}: spans must have at least 1 token on average")
        return RandomSpans(density, float(parts["span"]), random_roll)
    if parts["least"]:
        least, most = int(parts["least"]), int(parts["most"] or parts["least"])
        if not 1 <= least <= most:
            raise UserError(f"{name!r}: spans of {least} to {most} tokens; the first must be at least 1, and no more")
        return RegularSpans(density, least, most)
    return AfterPrefix(density) if parts["prefix"] else Iid(density)


def preprocessor_of(name: str, *, random_roll: bool = False) -> Callable[..., tf.data.Dataset]:
    """The preprocessor of any name of the grammar, `lm` and `prefix_lm` included: token ids to examples."""
    whole = {"lm": language_model.full_lm, "prefix_lm": language_model.prefix_lm}
    return whole.get(name) or functools.partial(denoise, recipe=parse_recipe(name, random_roll=random_roll))


def denoise(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    recipe: Recipe,
    prefix_ids: Callable[[seqio.Vocabulary], Sequence[int]] = lambda vocabulary: (),
    reserved_sentinels: int = 0,
    documents_per_batch: int = 128,
) -> tf.data.Dataset:
    """Cuts documents into chunks and takes noise out of each.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `inputs` and `targets`; a chunk is the longest of which both fit, and for which the
        sentinels suffice. Where noise is drawn token by token, one row in a thousand may be cut to them.
      output_features: `inputs` and `targets`, of one vocabulary.
      recipe: the denoiser.
      prefix_ids: ids that every `inputs` begins with.
      reserved_sentinels: how many of the vocabulary's extra ids, from the lowest on, are no sentinels.
      documents_per_batch: how many documents are worked on at once.

    Returns:
      Examples with `inputs` and `targets`, int32, each ending in EOS.

    Raises:
      UserError: the lengths are too short, the vocabularies differ, or there are too few sentinels.
    """
    vocabulary = output_features["targets"].vocabulary
    if sequence_length is None or not {"inputs", "targets"} <= set(sequence_length):
        raise UserError(f"denoising needs TASK_FEATURE_LENGTHS of 'inputs' and 'targets', not {sequence_length}")
    if output_features["inputs"].vocabulary != vocabulary:
        raise UserError("denoising needs one vocabulary for 'inputs' and 'targets'")
    language_model.require_eos(vocabulary)
    front, ids = tuple(prefix_ids(vocabulary)), Ids.from_vocabulary(vocabulary)
    inputs_length, targets_length = sequence_length["inputs"], sequence_length["targets"]
    sentinels = vocabulary.extra_ids - reserved_sentinels
    length = chunk_length(recipe, inputs_length - len(front), targets_length, sentinels)
    max_spans = sentinels - (not recipe.pattern.ends_in_noise) if recipe.unique_sentinels else length

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(batch, seed):
        documents = batch["targets"]
        if recipe.join_documents:
            tokens, counts = preprocessors.chunk(documents.flat_values, length)
        else:
            tokens, counts = preprocessors.chunk_each_document(documents, length)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        noise = token_encodings.limit_spans(recipe.pattern(counts, length, seeds[0]), max_spans)
        rows = Rows(tokens, noise, tf.sequence_mask(counts, length))
        inputs = recipe.encode_inputs()(rows, ids, seeds[1])
        inputs = tf.concat([tf.tile([front], [inputs.nrows(), 1]), inputs], axis=1) if front else inputs
        return {
            "inputs": preprocessors.truncate_with_eos(inputs, inputs_length, vocabulary),
            "targets": preprocessors.truncate_with_eos(
                recipe.encode_targets()(rows, ids, seeds[2]), targets_length, vocabulary
            ),
        }

    return corrupt(ds.ragged_batch(documents_per_batch)).unbatch()


def chunk_length(recipe: Recipe, inputs_length: int, targets_length: int, sentinels: int) -> int:
    """The tokens of the longest chunk whose inputs and targets fit, with EOS, and for which the sentinels suffice.

    Raises:
      UserError: not even two tokens do; the message gives the numbers.
    """

    def fits(length: int) -> bool:
        inputs, targets = recipe.max_lengths(length)
        return inputs < inputs_length and targets < targets_length and recipe.max_sentinels(length) <= sentinels

    length = 2
    if not fits(length):
        inputs, targets = recipe.max_lengths(length)
        raise UserError(
            f"nothing fits this denoiser: two tokens of text need TASK_FEATURE_LENGTHS of at least inputs={inputs + 1} "
            f"and targets={targets + 1}, not {inputs_length} and {targets_length}, and {recipe.max_sentinels(length)} "
            f"sentinels of the vocabulary's {sentinels} (its extra_ids)"
        )
    while fits(length + 1):
        length += 1
    return length


def add_denoising_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    recipe: str = "iid_15_u_u",
    *,
    random_roll: bool = False,
    text_feature: str = "text",
) -> seqio.Task:
    """A task that restores text from noise, by the name of T5's recipe.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with an EOS, and with sentinels (`extra_ids`) where the recipe puts any.
      recipe: see GRAMMAR.
      random_roll: let random spans lie anywhere, the row's end included.
      text_feature: the feature of the source that holds the text.

    Raises:
      UserError: there is no such recipe; the message gives the grammar.
    """
    features = ("targets",) if recipe == "lm" else ("inputs", "targets")
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            preprocessor_of(recipe, random_roll=random_roll),
        ],
        output_features={feature: seqio.Feature(vocabulary) for feature in features},
    )
