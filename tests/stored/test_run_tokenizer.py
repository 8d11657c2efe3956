"""The copy of the tokenizer in a run directory."""

import json
import shutil
from pathlib import Path

import pytest

from t5x_like.errors import UserError
from t5x_like.stored import run_tokenizer, run_vocabulary
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.vocabularies import shipped, tokenizer_files, vocabulary_digest
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind

pytestmark = pytest.mark.notf


def write(directory, **files):
    directory.mkdir(exist_ok=True)
    for name, contents in files.items():
        (directory / name.replace("__", ".")).write_text(contents)
    return str(directory)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"tokenizer__json": "{}"}, "."),
        ({"vocab__txt": "a"}, "vocab.txt"),
        ({"spiece__model": "", "config__json": "{}"}, "."),
        ({"own__model": ""}, "own.model"),
        ({"config__json": "{}"}, None),
        ({"a__model": "", "b__model": ""}, None),
        ({}, None),
    ],
)
def test_tokenizer_is_found(tmp_path, files, found):
    directory = write(tmp_path / "a", **files)
    expected = {None: None, ".": directory}.get(found, f"{directory}/{found}")
    assert tokenizer_files.find(directory) == expected


def test_copy_has_the_tokenizer_and_the_model_it_started_from(tmp_path):
    vocabulary = write(tmp_path / "a", vocab__txt="[CLS]", config__json="{}", model__safetensors="weights")
    initial = write(tmp_path / "b", config__json='{"model_type": "bert"}', model__safetensors="weights")
    run_tokenizer.store(str(tmp_path / "run"), TextVocabulary(None, vocabulary), initial)
    copy = {path.name: path.read_text() for path in (tmp_path / "run/tokenizer").iterdir()}
    assert copy == {"vocab.txt": "[CLS]", "config.json": json.dumps({"model_type": "bert"})}


def test_copy_of_a_sentencepiece_model_has_no_config(tmp_path):
    write(tmp_path / "a", own__model="pieces")
    initial = write(tmp_path / "b", config__json="{}", generation_config__json="{}", model__safetensors="weights")
    run_tokenizer.store(str(tmp_path / "run"), TextVocabulary(None, str(tmp_path / "a/own.model")), initial)
    copied = {path.name for path in (tmp_path / "run/tokenizer").iterdir()}
    assert copied == {"own.model", "generation_config.json"}
    assert tokenizer_files.find(str(tmp_path / "run/tokenizer")) == str(tmp_path / "run/tokenizer/own.model")


def test_other_tokenizer_of_a_resumed_run_raises(tmp_path):
    first, second = (TextVocabulary(name, write(tmp_path / name, vocab__txt=name)) for name in ("a", "b"))
    run = str(tmp_path / "run")
    run_tokenizer.store(run, first, None)
    run_tokenizer.check(run, first)
    run_tokenizer.check(run, TextVocabulary("a", f"{run}/tokenizer"))
    with pytest.raises(UserError, match="vocab.txt differs from the tokenizer of the run"):
        run_tokenizer.check(run, second)


def test_run_of_deberta_v2_that_stored_its_model_alone_resumes(tmp_path):
    """As earlier versions stored it, which did not know that spm.model belongs to the files beside it."""
    run, source = str(tmp_path / "run"), tmp_path / "deberta"
    write(
        source,
        tokenizer_config__json='{"tokenizer_class": "DebertaV2Tokenizer"}',
        added_tokens__json='{"[MASK]": 9999}',
    )
    shutil.copy(Path(shipped.__file__).parent / "python_docs.model", source / "spm.model")
    earlier = TextVocabulary(vocabulary_digest.of_path(f"{source}/spm.model"), f"{source}/spm.model")
    run_tokenizer.store(run, earlier, None)
    run_vocabulary.store(run, earlier.digest, VocabularyKind("DebertaV2Vocabulary", 1025), "a_task", {})
    vocabulary = vocabulary_digest.of_location(str(source))
    assert vocabulary.digest != earlier.digest
    run_tokenizer.check(run, vocabulary)
    run_tokenizer.check_checkpoint(run, vocabulary)
    assert vocabulary.may_have(None) and not vocabulary.may_have("another")
    (source / "spm.model").write_bytes(b"another")
    with pytest.raises(UserError, match="spm.model differs from the tokenizer of the run"):
        run_tokenizer.check(run, vocabulary)


def test_moved_tokenizer_of_a_resumed_run_is_compared_by_its_digest(tmp_path):
    run, path = str(tmp_path / "run"), write(tmp_path / "a", vocab__txt="a")
    run_tokenizer.store(run, TextVocabulary("a", path), None)
    run_vocabulary.store(run, "a", None, "a_task", {})
    shutil.rmtree(path)
    run_tokenizer.check(run, TextVocabulary("a", path))
    with pytest.raises(UserError, match="differs from the vocabulary of the data"):
        run_tokenizer.check(run, TextVocabulary("b", path))


def test_directory_without_tokenizer_raises(tmp_path):
    with pytest.raises(UserError, match="tokenizer files not found"):
        run_tokenizer.store(str(tmp_path / "run"), TextVocabulary("a", write(tmp_path / "a", config__json="{}")), None)


def test_other_vocabulary_of_a_resumed_run_without_files_raises(tmp_path):
    run = str(tmp_path / "run")
    run_vocabulary.store(run, "bytes", None, "a_task", {})
    run_tokenizer.check(run, TextVocabulary("bytes"))
    with pytest.raises(UserError, match="differs from the vocabulary of the data, .other.. Give another MODEL_DIR"):
        run_tokenizer.check(run, TextVocabulary("other"))


def test_run_that_knows_only_the_kind_of_its_vocabulary_resumes(tmp_path):
    run_vocabulary.store(str(tmp_path), None, VocabularyKind("ByteVocabulary", 259), "a_task", {})
    assert run_tokenizer.stored_digest(str(tmp_path)) is None
    run_tokenizer.check(str(tmp_path), TextVocabulary())


def test_other_vocabulary_of_pretrained_weights_raises(tmp_path):
    run = str(tmp_path / "run")
    run_vocabulary.store(run, "theirs", None, "a_task", {})
    run_tokenizer.check_initial(InitialWeights(path=run), TextVocabulary("theirs"))
    for changes in ({"other_vocabulary": True}, {"new_tokens": 2}, {"truncated": ("vocab",)}):
        run_tokenizer.check_initial(InitialWeights(path=run, **changes), TextVocabulary("ours"))
    with pytest.raises(UserError, match="INITIAL_CHECKPOINT_PATH=.*theirs.*ours.*INITIAL_OTHER_VOCABULARY=True"):
        run_tokenizer.check_initial(InitialWeights(path=run), TextVocabulary("ours"))
    with pytest.raises(UserError, match="CHECKPOINT_PATH=.*OTHER_VOCABULARY=True"):
        run_tokenizer.check_checkpoint(run, TextVocabulary("ours"))


def test_copy_keeps_the_class_of_a_tokenizer_of_another_family(tmp_path):
    """The config.json of the initial model would make GPT-2's vocabulary RoBERTa's."""
    for name, model_type in (("vocabulary", "gpt2"), ("initial", "roberta")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "initial/model.safetensors").touch()
    (tmp_path / "vocabulary/vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    (tmp_path / "vocabulary/merges.txt").write_text("")
    location = TextVocabulary(None, str(tmp_path / "vocabulary"))
    run_tokenizer.store(str(tmp_path / "run"), location, str(tmp_path / "initial"))
    assert json.loads((tmp_path / "run/tokenizer/config.json").read_text()) == {"model_type": "gpt2"}
