"""Tasks over documents that are divided into sentences: the data of BERT, ALBERT, SpanBERT, ETC and StructBERT.

Each kind of data is a task over the shipped corpus and one over text files:

    DATA_FILES = "books/*.txt"
    VOCABULARY_PATH = "bert_base_uncased_vocab.txt"
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.documents_task import add_task, number_features
from data_tasks.pretraining import sentence_files, sentences
from data_tasks.pretraining.masked_lm import MASK_RATE, BertMasking, Masking, mask_inputs
from data_tasks.pretraining.masked_lm_tasks import output_features
from data_tasks.pretraining.ngram_masking import NgramMasking
from data_tasks.pretraining.sentence_blocks import marked_sentences, sentence_blocks
from data_tasks.pretraining.sentence_order import ordered_pairs
from data_tasks.pretraining.sentence_pairs import sentence_pairs
from data_tasks.pretraining.sentence_structure import shuffle_trigrams, structured_pairs
from data_tasks.pretraining.span_masking import SpanMasking
from t5x_like.data import task_arguments
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped, vocabulary_files
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_model

Preprocessor = Callable[..., tf.data.Dataset]

PAIR_FEATURES = ("token_types", "next_sentence_label")

# Arguments of the tasks over text files.
TEXT_FILES_ARGUMENTS = text_files.FILES_ARGUMENTS | dict(
    **sentence_files.SENTENCE_ARGUMENTS,
    # Fraction of the tokens to mask; 0 for plain text, from which a student learns by losses between layers.
    mask_rate=MASK_RATE,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt); for text_files_sentence_order, a
    # SentencePiece model with [CLS], [SEP] and [MASK], such as ALBERT's spiece.model. Required.
    vocabulary_path=None,
)


def add_sentences_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    steps: Sequence[Preprocessor],
    features: Sequence[str] = (),
    outputs: Callable[[seqio.Vocabulary], Mapping[str, seqio.Feature]] = output_features,
    split: Callable[[], sentences.Split] = lambda: sentences.split_prose,
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task whose examples are made from documents that are divided into sentences.

    The output features are `outputs` and `features`. What the steps draw differs in every
    epoch.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: see `special_tokens.special_tokens` for its requirements.
      steps: make examples from documents in the format of `sentences`, such as `sentence_pairs` and `masked`.
      features: further features that the steps make.
      outputs: returns the output features, given the vocabulary. Default: those of masked LM.
      split: returns the function that splits a document into sentences, `sentences.split_lines` or `split_prose`. It is
        called when the data is read.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """

    def tokenize_sentences(ds, output_features):
        return sentences.tokenize_sentences(ds, output_features, split=split())

    found = {**outputs(vocabulary), **number_features(*features)}
    return add_task(name, source, steps, found, prepare=[tokenize_sentences], text_feature=text_feature)


def masked(masking: Callable[[], Masking]) -> Preprocessor:
    """Returns the preprocessor `mask_inputs` with the rule that `masking` returns when the data is read."""

    def mask(ds, sequence_length, output_features):
        return mask_inputs(ds, sequence_length, output_features, masking=masking())

    return mask


# ---- tasks -----------------------------------------------------------------------------------------------------------


def word_pieces(path: str, arguments: Mapping[str, Any]) -> seqio.Vocabulary:
    """Reads BERT's vocab.txt, with the task argument `lower_case`."""
    return vocabulary_files.word_pieces(path, arguments["lower_case"])


def _albert_pieces(path: str, arguments: Mapping[str, Any]) -> seqio.Vocabulary:
    file = sentencepiece_model(path, extra_ids=0).sentencepiece_model_file
    return vocabulary_files.albert(file, arguments["lower_case"])


def late_vocabulary(
    name: str,
    arguments: Mapping[str, Any],
    read: Callable[[str, Mapping[str, Any]], seqio.Vocabulary],
) -> LateVocabulary:
    """Returns the vocabulary at the task argument `vocabulary_path`, which is required when the data is read.

    Args:
      name: The task name.
      arguments: The declared arguments of the task.
      read: Reads the vocabulary at a path that is not a Hugging Face directory, with the arguments.
    """

    def path():
        if arguments["vocabulary_path"] is None:
            raise UserError(
                f"{name} needs task_arguments {{'vocabulary_path': …}}: the vocabulary of the model, such as the "
                "vocab.txt of a BERT (with 'lower_case': False for a cased one), or a Hugging Face directory"
            )
        return arguments["vocabulary_path"]

    return LateVocabulary(path, read_other=lambda path: read(path, arguments))


def add_tasks(
    kind: str,
    masking: Callable[[float], Masking],
    *,
    examples: Preprocessor,
    further: Sequence[Preprocessor] = (),
    features: Sequence[str] = PAIR_FEATURES,
    lower_case: bool = True,
    read_vocabulary: Callable[[str, Mapping[str, Any]], seqio.Vocabulary] = word_pieces,
) -> None:
    """Registers the tasks `python_docs_KIND` and `text_files_KIND`.

    Args:
      kind: end of the names of the tasks.
      masking: the rule for choosing tokens, from the fraction of tokens to choose.
      examples: makes examples from documents in the format of `sentences`.
      further: preprocessors of masked examples.
      features: features that the preprocessors make in addition to the features of `add_sentences_task`.
      lower_case: default of the task argument `lower_case`.
      read_vocabulary: reads the vocabulary at a path that is no Hugging Face directory, with the task arguments.
    """

    def add(name, source, vocabulary, rate, **options):
        steps = [examples, masked(lambda: masking(rate())), *further]
        add_sentences_task(name, source, vocabulary, steps=steps, features=features, **options)

    name = f"text_files_{kind}"
    arguments = task_arguments.declare(
        name,
        **TEXT_FILES_ARGUMENTS,
        # Whether to lower-case text and strip accents, as uncased vocabularies require. A Hugging Face directory states
        # it itself.
        lower_case=lower_case,
    )

    add(f"python_docs_{kind}", DocumentSource(python_docs.read), shipped.python_docs(), lambda: MASK_RATE)
    add(
        name,
        sentence_files.source(arguments),
        late_vocabulary(name, arguments, read_vocabulary),
        lambda: arguments["mask_rate"],
        split=lambda: sentence_files.split(arguments),
    )


add_tasks("sentence_pairs", BertMasking, examples=sentence_pairs)
add_tasks(
    "sentence_order",
    NgramMasking,
    examples=functools.partial(sentence_pairs, make_pairs=ordered_pairs),
    read_vocabulary=_albert_pieces,
)
add_tasks("span_masking", SpanMasking, examples=sentence_blocks, features=(), lower_case=False)
add_tasks(
    "etc",
    functools.partial(BertMasking, whole_words=True),
    examples=marked_sentences,
    features=("global_positions",),
)
add_tasks(
    "sentence_structure",
    BertMasking,
    examples=functools.partial(sentence_pairs, make_pairs=structured_pairs),
    further=[shuffle_trigrams],
    features=(*PAIR_FEATURES, "shuffled_targets", "shuffled_positions"),
)
