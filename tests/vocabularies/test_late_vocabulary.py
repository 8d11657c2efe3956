"""Tests of vocabularies with late-bound paths, and of label vocabularies."""

import copy

import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from t5x_like.data import task_arguments
from t5x_like.data.seqio_feed.registry import find_provider
from t5x_like.errors import UserError
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.labels import LabelVocabulary
from t5x_like.vocabularies.late import LateVocabulary, SeparatedVocabulary, sentencepiece_model
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, LateSentencePieceVocabulary, python_docs
from t5x_like.vocabularies.special_tokens import special_tokens

BERT_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]


@pytest.fixture
def bert(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_PIECES) + "\n")
    config = '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    return tmp_path


def test_directory_is_read_when_it_is_used(bert):
    path = [None]
    vocabulary = LateVocabulary(lambda: path[0])
    with pytest.raises(UserError, match="VOCABULARY_PATH is not set: the task has no vocabulary"):
        vocabulary.encode("a")
    path[0] = str(bert)
    assert vocabulary.encode("A bb") == vocabulary.encode_tf(tf.constant("a bb")).numpy().tolist() == [5, 6, 7]
    assert vocabulary.decode([5, 6, 7]) == vocabulary.decode_tf(tf.constant([5, 6, 7])).numpy().decode() == "a bb"
    assert (vocabulary.vocab_size, vocabulary.extra_ids) == (8, 0)
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id) == (0, 1, None, None)
    assert (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id) == (2, 3, 4)
    assert special_tokens(vocabulary).mask == 4
    assert vocabulary.vocabulary is vocabulary.vocabulary
    assert not hasattr(vocabulary, "tokenizer")
    assert copy.copy(vocabulary) == vocabulary
    path[0] = str(PYTHON_DOCS_MODEL)
    assert vocabulary.vocab_size == python_docs().vocab_size and vocabulary.eos_id == 1
    assert vocabulary.encode("import <extra_id_0>") == python_docs().encode("import <extra_id_0>")
    assert not hasattr(vocabulary, "cls_id")


def test_separator_is_eos_of_a_vocabulary_without_one(bert):
    vocabulary = SeparatedVocabulary(lambda: str(bert))
    assert vocabulary.eos_id == 3 and vocabulary.encode("a bb") == [5, 6, 7]
    assert vocabulary.decode([5, 6, 7, 3, 5, 3]) == vocabulary.decode([5, 6, 7]) == "a bb"
    assert vocabulary.decode_tf(tf.constant([5, 6, 7, 3, 5])).numpy() == b"a bb"
    assert vocabulary.decode_tf(tf.constant([[5, 3, 5], [6, 7, 3]])).numpy().tolist() == [b"a", b"bb"]
    model = SeparatedVocabulary(lambda: str(PYTHON_DOCS_MODEL))
    assert model.eos_id == 1 and model.decode([*model.encode("import"), 1, 5]) == "import"


def test_vocabularies_are_equal_if_their_paths_are(bert):
    unset, model = LateVocabulary(lambda: None), LateVocabulary(lambda: str(PYTHON_DOCS_MODEL))
    assert unset == LateVocabulary(lambda: None)
    assert unset != model and unset != python_docs() and model != LateVocabulary(lambda: str(bert))
    assert model == python_docs() and python_docs() == model  # a mixture compares its tasks in any order
    assert python_docs() != LateVocabulary(lambda: str(bert))
    assert model != LateVocabulary(lambda: str(PYTHON_DOCS_MODEL), extra_ids=0)
    assert LateVocabulary(lambda: str(bert)) == from_folder(bert)


def test_path_without_tokenizer_files_is_read_by_the_task(bert, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "spiece.model").write_bytes(PYTHON_DOCS_MODEL.read_bytes())
    (other / "config.json").write_text("{}")
    path = [str(bert)]
    vocabulary = LateVocabulary(lambda: path[0], read_other=sentencepiece_model)
    assert vocabulary == from_folder(bert) and vocabulary == LateVocabulary(lambda: str(bert))
    path[0] = str(other)
    assert vocabulary.encode("def") == python_docs().encode("def")
    assert vocabulary == LateVocabulary(lambda: str(other / "spiece.model"))
    assert LateSentencePieceVocabulary(lambda: str(other)) == vocabulary
    (other / "config.json").write_text('{"model_type": "t5"}')
    (other / "tokenizer_config.json").write_text('{"extra_ids": 7}')
    assert vocabulary.extra_ids == 7


def test_invalid_paths_raise(tmp_path):
    with pytest.raises(UserError, match=r"VOCABULARY_PATH='none.model': file not found"):
        LateVocabulary(lambda: "none.model").encode("a")
    (tmp_path / "a.model").write_text("text")
    with pytest.raises(UserError, match=r"a\.model': not a SentencePiece model"):
        LateVocabulary(lambda: str(tmp_path / "a.model")).encode("a")


@pytest.fixture
def vocabulary_of(tmp_path):
    """Returns a function from a task to the vocabulary of its targets, whose path is a file of words and counts."""
    (tmp_path / "vocab.txt").write_text("the 10\nof 5\n")

    def vocabulary(task):
        task_arguments.update([task], {"vocabulary_path": str(tmp_path / "vocab.txt")})
        return find_provider(task).output_features["targets"].vocabulary

    yield vocabulary
    task_arguments.reset()


@pytest.mark.parametrize("task", ["text_files_causal_lm", "text_files_prefix_lm", "text_files_sequence_autoencoder"])
def test_tasks_read_words_and_their_counts(task, vocabulary_of):
    assert vocabulary_of(task).encode("of the") == [4, 3]


@pytest.mark.parametrize("task", ["text_files_span_corruption", "text_files_masked_lm", "text_files_deberta"])
def test_words_are_an_error_in_tasks_with_sentinels_or_a_mask_token(task, vocabulary_of):
    with pytest.raises(UserError, match="not a SentencePiece model"):
        vocabulary_of(task).encode("of the")


def test_labels_pass_through_and_are_never_padding():
    labels = LabelVocabulary(["negative", "positive"])
    assert labels.names == ("negative", "positive") and labels.vocab_size == 2
    assert labels.pad_id is None and labels.bos_id is None and labels.eos_id is None
    assert labels.decode([0]) == [0]
    assert labels == LabelVocabulary(("negative", "positive")) != LabelVocabulary(("positive", "negative"))
    assert labels != seqio.PassThroughVocabulary(2)
    assert LabelVocabulary(()).vocab_size == 0
