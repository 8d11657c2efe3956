"""T5's denoising recipes by name, `<pattern>_<percent>_<inputs>_<targets>` (Raffel et al. 2020, section 3.3).

`iid_15_u_u` is the baseline of the paper, `span_3_15_u_u` is the recipe of the released models, `iid_15_r10s90_f` is
BERT's and `iid_15_m_f` is MASS's. `iid_15_d_d` drops tokens, and `all_permute` restores the order of a permuted chunk.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_eos, require_lengths, require_shared_vocabulary
from data_tasks.pretraining import language_model, token_encodings
from data_tasks.pretraining.noise_patterns import AfterPrefix, Iid, Pattern, RandomSpans, RegularSpans
from data_tasks.pretraining.token_encodings import Encoding, Ids, Rows
from t5x_like.errors import UserError

GRAMMAR = """lm, prefix_lm, all_permute, or <pattern>_<percent>_<inputs>_<targets>, where
  pattern  iid (tokens chosen independently), span_N (random spans with a mean of N tokens), reg_N or reg_N-M (spans of
           N to M tokens at equal distances), prefix (all tokens after a random prefix; at most 50 percent), end (the
           last tokens of a chunk, in one span)
  percent  mean percentage of noise tokens
  inputs   what replaces the noise: m (a mask per token), r (random tokens), r10s90 (10 percent random tokens, 90
           percent masks), g (tokens of the same text), p (permuted noise tokens), d (dropped), s (a mask per span),
           u (a unique sentinel per span)
  targets  f (the full text), d (only the noise), s or u (the noise, with a mask or a unique sentinel per span of the
           other tokens)"""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A denoising recipe.

    Attributes:
      pattern: chooses the noise tokens.
      inputs: the letter of GRAMMAR for what replaces the noise in `inputs`.
      targets: the letter of GRAMMAR for the contents of `targets`.
      join_documents: whether to join documents before they are cut into chunks.
    """

    pattern: Pattern
    inputs: str
    targets: str
    join_documents: bool = True

    def encode_inputs(self) -> Encoding:
        """Returns the encoding of `inputs`."""
        if mixed := re.fullmatch(r"r(\d+)s(\d+)", self.inputs):
            rate = int(mixed[1]) / 100
            return functools.partial(token_encodings.noise_token_to_random_token_or_sentinel, random_prob=rate)
        return _INPUTS[self.inputs]

    def encode_targets(self) -> Encoding:
        """Returns the encoding of `targets`."""
        return _TARGETS[self.targets]

    def max_lengths(self, length: int) -> tuple[int, int]:
        """Returns the maximum lengths of `inputs` and `targets` for a chunk of `length`, without EOS."""
        noise, spans = self.pattern.max_noise(length)
        shorter = {"d": noise, "s": noise - spans, "u": noise - spans}.get(self.inputs, 0) if self.pattern.exact else 0
        other_spans = spans + (not self.pattern.ends_in_noise)
        return length - shorter, {"f": length, "d": noise}.get(self.targets, noise + other_spans)

    @property
    def unique_sentinels(self) -> bool:
        """Whether each span has its own sentinel."""
        return "u" in (self.inputs, self.targets)

    def max_sentinels(self, length: int) -> int:
        """Returns the maximum number of different sentinels that a chunk of `length` needs."""
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
    r"(?:(?P<iid>iid)|(?P<prefix>prefix)|(?P<end>end)|span_(?P<span>\d+(?:\.\d+)?)|reg_(?P<least>\d+)(?:-(?P<most>\d+))?)"
    r"_(?P<percent>\d+)_(?P<inputs>[mrgpdsu]|r\d+s\d+)_(?P<targets>[fdsu])"
)


def parse_recipe(name: str, *, random_roll: bool = False) -> Recipe:
    """Parses the name of a recipe such as `iid_15_u_u`.

    Args:
      name: a name that follows GRAMMAR, except `lm` and `prefix_lm`, which only `preprocessor_of` accepts.
      random_roll: whether random spans may be anywhere, including across the end of a row.

    Returns:
      The recipe.

    Raises:
      UserError: the name does not follow the grammar, which the message gives, or a number in it is out of range.
    """
    if name == "all_permute":
        return Recipe(Iid(1.0), "p", "f", join_documents=False)
    match = _NAME.fullmatch(name)
    if not match:
        raise UserError(f"{name!r} is not a denoising recipe. Recipes are {GRAMMAR}")
    pattern = _pattern(name, match, random_roll)
    mixed = re.fullmatch(r"r(\d+)s(\d+)", match["inputs"])
    if mixed and int(mixed[1]) + int(mixed[2]) != 100:
        raise UserError(f"{name!r}: {mixed[1]} and {mixed[2]} in {match['inputs']!r} must add up to 100 percent")
    return Recipe(pattern, match["inputs"], match["targets"], join_documents=not isinstance(pattern, AfterPrefix))


def _pattern(name: str, match: re.Match, random_roll: bool) -> Pattern:
    percent = int(match["percent"])
    max_percent = 50 if match["prefix"] else 99 if match["span"] or match["end"] else 100
    if not 1 <= percent <= max_percent:
        raise UserError(f"{name!r}: the percentage of noise {percent} must be 1 to {max_percent} with this pattern")
    if random_roll and not match["span"]:
        raise UserError(f"{name!r}: random_roll=True applies only to random spans, span_N_…")
    density = percent / 100
    if match["span"]:
        if float(match["span"]) < 1:
            raise UserError(f"{name!r}: the mean span length must be at least 1 token")
        return RandomSpans(density, float(match["span"]), random_roll)
    if match["least"]:
        least, most = int(match["least"]), int(match["most"] or match["least"])
        if not 1 <= least <= most:
            raise UserError(f"{name!r}: span lengths {least} to {most} must satisfy 1 <= N <= M")
        return RegularSpans(density, least, most)
    if match["end"]:
        return RandomSpans(density, math.inf)
    return AfterPrefix(density) if match["prefix"] else Iid(density)


def preprocessor_of(name: str, *, random_roll: bool = False) -> Callable[..., tf.data.Dataset]:
    """Returns the preprocessor of a recipe, which makes examples from token ids.

    Args:
      name: any name that follows GRAMMAR, including `lm` and `prefix_lm`.
      random_roll: whether random spans may be anywhere, including across the end of a row.

    Returns:
      A SeqIO preprocessor.

    Raises:
      UserError: see `parse_recipe`.
    """
    whole = {"lm": language_model.full_lm, "prefix_lm": language_model.prefix_lm}
    return whole.get(name) or functools.partial(denoise, recipe=parse_recipe(name, random_roll=random_roll))


@tf.autograph.experimental.do_not_convert
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
    """Cuts documents into chunks and applies a denoising recipe to each chunk.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: lengths of `inputs` and `targets` in tokens. Chunks have the maximum length at which both fit and
        the sentinels suffice. With independent noise tokens, one row in a thousand may be truncated.
      output_features: `inputs` and `targets`, with the same vocabulary.
      recipe: the denoising recipe.
      prefix_ids: returns the ids to prepend to every `inputs`.
      reserved_sentinels: number of the vocabulary's extra ids, from the lowest on, that are not used as sentinels.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with `inputs` and `targets`, int32, each ending in EOS.

    Raises:
      UserError: the lengths are too short, the vocabularies differ, or the vocabulary has too few sentinels.
    """
    lengths = require_lengths("denoising", sequence_length, "inputs", "targets")
    vocabulary = require_shared_vocabulary("denoising", output_features)
    require_eos(vocabulary)
    prefix, ids = tuple(prefix_ids(vocabulary)), Ids.from_vocabulary(vocabulary)
    inputs_length, targets_length = lengths["inputs"], lengths["targets"]
    sentinels = vocabulary.extra_ids - reserved_sentinels
    length = chunk_length(recipe, inputs_length - len(prefix), targets_length, sentinels)
    max_spans = sentinels - (not recipe.pattern.ends_in_noise) if recipe.unique_sentinels else length

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(batch, seed):
        documents = batch["targets"]
        if recipe.join_documents:
            tokens, counts = preprocessors.chunk(documents.flat_values, length)
            origins = preprocessors.documents_of_chunks(batch, counts, length)
        else:
            tokens, counts = preprocessors.chunk_each_document(documents, length)
            origins = preprocessors.document_of_each_chunk(batch, length)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        noise = token_encodings.limit_spans(recipe.pattern(counts, length, seeds[0]), max_spans)
        rows = Rows(tokens, noise, tf.sequence_mask(counts, length))
        inputs = recipe.encode_inputs()(rows, ids, seeds[1])
        inputs = tf.concat([tf.tile([prefix], [inputs.nrows(), 1]), inputs], axis=1) if prefix else inputs
        return origins | {
            "inputs": preprocessors.truncate_with_eos(inputs, inputs_length, vocabulary),
            "targets": preprocessors.truncate_with_eos(
                recipe.encode_targets()(rows, ids, seeds[2]), targets_length, vocabulary
            ),
        }

    return corrupt(ds.ragged_batch(documents_per_batch)).unbatch()


def chunk_length(recipe: Recipe, inputs_length: int, targets_length: int, sentinels: int) -> int:
    """Returns the maximum chunk length at which inputs and targets fit with EOS and the sentinels suffice.

    Args:
      recipe: the denoising recipe.
      inputs_length: length of `inputs` in tokens.
      targets_length: length of `targets` in tokens.
      sentinels: number of available sentinels.

    Returns:
      The length in tokens.

    Raises:
      UserError: a chunk of two tokens does not fit. The message gives the required numbers.
    """

    def fits(length: int) -> bool:
        inputs, targets = recipe.max_lengths(length)
        return inputs < inputs_length and targets < targets_length and recipe.max_sentinels(length) <= sentinels

    length = 2
    if not fits(length):
        inputs, targets = recipe.max_lengths(length)
        raise UserError(
            f"TASK_FEATURE_LENGTHS inputs={inputs_length}, targets={targets_length} with {sentinels} sentinels "
            "(extra_ids of the vocabulary): too small for this recipe. Two tokens of text need at least "
            f"inputs={inputs + 1}, targets={targets + 1} and {recipe.max_sentinels(length)} sentinels."
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
    """Registers a denoising task for a T5 recipe.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS, and with sentinels (`extra_ids`) if the recipe uses any.
      recipe: a name that follows GRAMMAR.
      random_roll: whether random spans may be anywhere, including across the end of a row.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.

    Raises:
      UserError: the recipe does not exist. The message gives the grammar.
    """
    features = ("targets",) if recipe == "lm" else ("inputs", "targets")
    ended = ("targets",) if recipe == "prefix_lm" else features  # EOS ends a document, not the prefix of one
    preprocessor = preprocessor_of(recipe, random_roll=random_roll)
    return add_task(
        name, source, [preprocessor], text_features(vocabulary, *features, ended=ended), text_feature=text_feature
    )
