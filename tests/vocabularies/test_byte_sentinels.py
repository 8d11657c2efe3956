"""The three conventions of the sentinels of ByT5, in files, in span corruption, and in what is shown."""

import json

import pytest
import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.pretraining import ul2
from data_tasks.pretraining.bart import NoiseTokens
from data_tasks.vocabulary_training.trainers import bytes_vocabulary
from t5x_like.data.token_text import special_name
from t5x_like.errors import UserError
from t5x_like.vocabularies import late, vocabulary_kind
from t5x_like.vocabularies.base import ByteVocabulary
from t5x_like.vocabularies.byte_vocabularies import BYTE_VOCABULARIES, ReleasedByteVocabulary
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.sentinels import sentinel_ids
from t5x_like.vocabularies.stored import candidates

# Convention -> the ids of <extra_id_0> and <extra_id_1>, and of <extra_id_124>.
IDS = {"t5": (383, 382, 259), "released": (258, 257, 134), "transformers": (259, 260, 383)}


def directory(path, **keys):
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer", **keys}))
    return str(path)


@pytest.mark.parametrize("convention", IDS)
def test_directories_name_their_convention(convention, tmp_path):
    vocabulary = from_folder(directory(tmp_path, sentinels=convention))
    ids = sentinel_ids(vocabulary)
    assert (ids[0], ids[1], ids[124]) == IDS[convention] and len(ids) == 125 and vocabulary.vocab_size == 384
    assert vocabulary == BYTE_VOCABULARIES[convention](extra_ids=125)
    assert all(vocabulary != each(extra_ids=125) for name, each in BYTE_VOCABULARIES.items() if name != convention)
    kind = vocabulary_kind.of_vocabulary(vocabulary)
    assert list(candidates(kind.name, kind.ids, None, guess=True)) == [vocabulary]


def test_downloads_have_the_sentinels_of_the_released_weights(tmp_path):
    assert from_folder(directory(tmp_path)) == ReleasedByteVocabulary(extra_ids=125)
    (tmp_path / "tokenizer_config.json").write_bytes(bytes_vocabulary([])["tokenizer_config.json"])
    assert from_folder(str(tmp_path)) == ByteVocabulary(extra_ids=125) == seqio.ByteVocabulary(extra_ids=125)
    with pytest.raises(UserError, match="sentinels 'last' of tokenizer_config.json is unknown. Give one of t5, rele"):
        from_folder(directory(tmp_path, sentinels="last"))


@pytest.mark.parametrize("convention", IDS)
def test_tasks_use_the_convention(convention, tmp_path):
    vocabulary = late.LateVocabulary(lambda: directory(tmp_path, sentinels=convention))
    feature = seqio.Feature(vocabulary)
    texts = tf.data.Dataset.from_tensor_slices({"text": ["abcdefgh" * 8]})
    ds = preprocessors.tokenize(preprocessors.documents(texts), {"inputs": feature, "targets": feature})
    with seqio.utils.map_seed_manager(1):
        ds = preprocessors.span_corruption(
            ds, {"inputs": 56, "targets": 20}, {"inputs": feature, "targets": feature}, mean_noise_span_length=2.0
        )
        example = next(ds.as_numpy_iterator())
    letters = {3 + ord(letter) for letter in "abcdefgh"}
    inserted = [[int(token) for token in example[name] if token not in {0, 1, *letters}] for name in example]
    ids = sentinel_ids(vocabulary)
    assert inserted[0] == inserted[1] == list(ids[: len(inserted[0])]) and len(inserted[0]) > 2
    assert special_name(ids[3], vocabulary, {}) == "<extra_id_3>"
    assert NoiseTokens.from_vocabulary(vocabulary).mask == ids[0]
    assert [ul2.mode_id(vocabulary, mode) for mode in "rsx"] == [ids[-1], ids[-2], ids[-3]]
