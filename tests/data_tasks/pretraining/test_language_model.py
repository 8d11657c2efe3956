"""Tests of chunks for causal and prefix language models, and of windows of characters."""

import collections

import numpy as np
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks import preprocessors
from data_tasks.corpora import characters
from data_tasks.pretraining import language_model
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError

# ---- causal and prefix language models -------------------------------------------------------------------------------


def byte_features(*names):
    return {name: seqio.Feature(seqio.ByteVocabulary()) for name in names}


def run(preprocessor, texts, lengths, features, seed=3, **kwargs):
    ds = tf.data.Dataset.from_tensor_slices({"text": texts})
    ds = preprocessors.tokenize(preprocessors.documents(ds), features)
    with seqio.utils.map_seed_manager(seed):
        return list(preprocessor(ds, lengths, features, **kwargs).as_numpy_iterator())


def shown(tokens):
    """Decodes bytes, with EOS as |."""
    return "".join("|" if token == 1 else chr(token - 3) for token in tokens if token)


def test_full_lm_joins_documents_with_eos():
    examples = run(language_model.full_lm, ["abc", "defgh", "i"], {"targets": 4}, byte_features("targets"))
    assert [shown(example["targets"]) for example in examples] == ["abc|", "defg", "h|i|"]


def test_full_lm_without_a_length_keeps_documents():
    examples = run(language_model.full_lm, ["abc", "defgh"], None, byte_features("targets"))
    assert [shown(example["targets"]) for example in examples] == ["abc|", "defgh|"]


def test_full_lm_keeps_single_token_chunk():
    examples = run(language_model.full_lm, ["abcd"], {"targets": 4}, byte_features("targets"))
    assert [example["targets"].tolist() for example in examples] == [[100, 101, 102, 103], [1, 0, 0, 0]]


def test_full_lm_joins_documents_within_batches():
    features = byte_features("targets")
    examples = run(language_model.full_lm, ["ab", "cd", "ef"], {"targets": 4}, features, documents_per_batch=2)
    assert [shown(example["targets"]) for example in examples] == ["ab|c", "d|", "ef|"]


def test_prefix_lm_splits_chunks_of_single_documents():
    texts = ["the quick brown fox", "jumps", "over the lazy dog", "x"]
    examples = run(language_model.prefix_lm, texts, {"inputs": 8, "targets": 12}, byte_features("inputs", "targets"))
    pairs = [(shown(example["inputs"]), shown(example["targets"])) for example in examples]
    assert all(prefix and rest for prefix, rest in pairs)
    chunks = [prefix + rest for prefix, rest in pairs]
    assert chunks == ["the quic", "k brown ", "fox|", "jumps|", "over the", " lazy do", "g|", "x|"]


def test_a_sequence_autoencoder_predicts_the_pieces_that_it_reads():
    features = byte_features("inputs", "targets")
    examples = run(language_model.sequence_autoencoder, ["abcdefg", "xy"], {"inputs": 5, "targets": 4}, features)
    assert [shown(example["inputs"]) for example in examples] == ["abc|", "def|", "g|", "xy|"]
    assert all((example["inputs"] == example["targets"]).all() for example in examples)


def test_prefix_lm_drops_chunk_of_eos_alone():
    examples = run(language_model.prefix_lm, ["abcd"], {"inputs": 4, "targets": 4}, byte_features("inputs", "targets"))
    assert [shown(example["inputs"]) + shown(example["targets"]) for example in examples] == ["abcd"]


def test_prefix_lengths_are_uniform():
    features = byte_features("inputs", "targets")
    examples = run(language_model.prefix_lm, ["abcdefg"] * 7000, {"inputs": 8, "targets": 8}, features)
    counts = collections.Counter(int((example["inputs"] != 0).sum()) for example in examples)
    assert sorted(counts) == [1, 2, 3, 4, 5, 6, 7]
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_square < 22.5  # p = 0.001 with 6 degrees of freedom


def test_invalid_lengths_and_vocabularies_raise():
    both = byte_features("inputs", "targets")
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS=.* causal LM needs 'targets'"):
        run(language_model.full_lm, ["a"], {"inputs": 4}, both)
    with pytest.raises(ValueError, match="lengths of at least 2"):
        run(language_model.prefix_lm, ["a"], {"inputs": 1, "targets": 9}, both)
    other = both | {"inputs": seqio.Feature(seqio.ByteVocabulary(extra_ids=5))}
    with pytest.raises(ValueError, match="the same vocabulary"):
        run(language_model.prefix_lm, ["a"], {"inputs": 4, "targets": 4}, other)
    without_eos = {"targets": seqio.Feature(seqio.PassThroughVocabulary(300))}
    with pytest.raises(ValueError, match="has no EOS"):
        language_model.full_lm(tf.data.Dataset.range(1), {"targets": 4}, without_eos)


@pytest.mark.parametrize(
    ("task", "lengths"),
    [("python_docs_causal_lm", {"targets": 64}), ("python_docs_prefix_lm", {"inputs": 32, "targets": 32})],
)
def test_shipped_tasks_yield_text(task, lengths):
    source = SeqIOSource(mixture_or_task_name=task, task_feature_lengths=lengths, batch_size=2, split="validation")
    vocabulary = source.vocabularies()["targets"]
    examples = list(source.task_dataset().take(20).as_numpy_iterator())
    text = "".join(vocabulary.decode(example[name].tolist()) for example in examples for name in sorted(example))
    assert "Python" in text
    assert source.add_eos() == {name: name == "targets" for name in lengths}  # which `infer` follows
    assert all(example["inputs"][-1] != vocabulary.eos_id for example in examples if "inputs" in lengths)
    assert all(example[name].shape[0] <= length for example in examples for name, length in lengths.items())


def test_text_files_causal_lm_has_its_own_arguments(tmp_path):
    (tmp_path / "a.txt").write_text("one line of a small file\n" * 40)
    source = SeqIOSource(
        mixture_or_task_name="text_files_causal_lm",
        task_feature_lengths={"targets": 32},
        batch_size=2,
        task_arguments={"pattern": f"{tmp_path}/*.txt", "validation_fraction": 0.0},
    )
    first = next(iter(source.task_dataset().as_numpy_iterator()))
    assert source.vocabularies()["targets"].decode(first["targets"].tolist()).startswith("one line of a small file")


# ---- characters ------------------------------------------------------------------------------------------------------


def test_character_vocabulary_matches_in_python_and_tensorflow():
    vocabulary = characters.CharacterVocabulary(lambda: "\n abß😀", extra_ids=2)
    assert vocabulary.vocab_size == 3 + 6 + 2
    assert vocabulary.encode("ab ß\n😀?") == [5, 6, 4, 7, 3, 8, 2]
    assert vocabulary.encode_tf(tf.constant("ab ß\n😀?")).numpy().tolist() == [5, 6, 4, 7, 3, 8, 2]
    assert (
        vocabulary.decode([5, 6, 4, 7, 3, 8, 2, 0, 10, 1, 5])
        == "ab ß\n😀\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    )
    assert vocabulary.decode_tf(tf.constant([[5, 8, 2, 0], [6, 1, 5, 5]])).numpy().tolist() == [
        "a😀\N{REPLACEMENT CHARACTER}".encode(),
        b"b",
    ]
    assert vocabulary == characters.CharacterVocabulary(lambda: "\n abß😀", extra_ids=2)
    assert vocabulary != characters.CharacterVocabulary(lambda: "ab", extra_ids=2)


def character_source(path, length, split="train", **kwargs):
    return SeqIOSource(
        mixture_or_task_name=characters.TASK,
        task_feature_lengths={"targets": length},
        batch_size=2,
        split=split,
        task_arguments={"path": str(path)},
        **kwargs,
    )


@pytest.fixture
def alphabet(tmp_path):
    """Returns a file of 100 different characters."""
    path = tmp_path / "input.txt"
    path.write_text("".join(chr(0x4E00 + index) for index in range(100)))
    return path


def windows_of(source, **reading):
    return [example["targets"] - 3 for example in source.task_dataset(**reading).as_numpy_iterator()]


def test_first_90_percent_train_and_rest_validates(alphabet):
    train = windows_of(character_source(alphabet, 20))
    assert [window.tolist() for window in train] == [list(range(i, min(i + 20, 90))) for i in range(0, 90, 20)]
    validation = windows_of(character_source(alphabet, 7, split="validation"))
    assert np.concatenate(validation).tolist() == list(range(90, 100))


def test_shuffled_windows_begin_anywhere_and_do_not_overlap(alphabet):
    source = character_source(alphabet, 20)
    firsts, passes = set(), 60
    windows = windows_of(source, shuffle=True, num_epochs=passes)
    for window in windows:
        assert window.tolist() == list(range(window[0], window[0] + 20))
    # 90 characters hold 4 full windows from an offset of 0 … 10, and 3 from a greater offset.
    starts = [int(window[0]) for window in windows]
    first = 0
    while first < len(starts):
        count = 4 if starts[first] % 20 <= 10 else 3
        one_pass = sorted(starts[first : first + count])
        assert np.diff(one_pass).tolist() == [20] * (count - 1)
        firsts.add(one_pass[0])
        first += count
    assert len(firsts) > 15
    assert any(starts[i] > starts[i + 1] for i in range(len(starts) - 1))


def test_two_processes_share_a_pass(alphabet):
    source = character_source(alphabet, 10)
    shards = [windows_of(source, shuffle=True, shard_info=seqio.ShardInfo(index, 2)) for index in range(2)]
    together = sorted(int(window[0]) for shard in shards for window in shard)
    assert np.diff(together).tolist() == [10] * (len(together) - 1)
    assert len(together) in (8, 9) and abs(len(shards[0]) - len(shards[1])) <= 1


def test_position_checkpoint_is_small_and_restores(test_data, tmp_path):
    source = character_source(test_data / "text/tinyshakespeare/input.txt", 64)
    ds = source.task_dataset(shuffle=True, num_epochs=None)
    iterator = iter(ds)
    for _ in range(5):
        next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    following = [next(iterator)["targets"].numpy().tolist() for _ in range(5)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000
    resumed = iter(ds)
    tf.train.Checkpoint(iterator=resumed).read(str(tmp_path / "position"))
    assert [next(resumed)["targets"].numpy().tolist() for _ in range(5)] == following


def test_tiny_shakespeare_has_65_characters_and_split_of_nanogpt(test_data):
    source = character_source(test_data / "text/tinyshakespeare/input.txt", 64)
    assert source.vocabularies()["targets"].vocab_size == 3 + 65
    corpus = characters.read(str(test_data / "text/tinyshakespeare/input.txt"))
    assert [len(corpus.splits[split][0]) for split in ("train", "validation")] == [1_003_854, 111_540]


def test_invalid_character_files_raise(tmp_path):
    with pytest.raises(ValueError, match="task_arguments {'path'"):
        characters.read("")
    with pytest.raises(UserError):
        characters.read(str(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        characters.read(str(tmp_path / "bad.txt"))
    (tmp_path / "one.txt").write_text("a")
    with pytest.raises(ValueError, match="leaves a split empty"):
        characters.read(str(tmp_path / "one.txt"))


class NoPadding(seqio.PassThroughVocabulary):
    """A vocabulary without padding, in which id 0 is a token, as in GPT-2."""

    pad_id = None


def test_chunks_keep_trailing_id_0_without_pad_id():
    features = dict.fromkeys(("inputs", "targets"), seqio.Feature(NoPadding(10, eos_id=9)))
    documents = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[5, 0, 6, 0]]))
    documents = documents.map(lambda ids: {"targets": tf.identity(ids)})
    chunks = [list(map(int, e["targets"])) for e in language_model.full_lm(documents, {"targets": 2}, features)]
    assert chunks == [[5, 0], [6, 0], [9]]
    with seqio.utils.map_seed_manager(1):
        (pair,) = language_model.prefix_lm(documents, {"inputs": 5, "targets": 5}, features)
    assert [*pair["inputs"].numpy(), *pair["targets"].numpy()] == [5, 0, 6, 0, 9]
