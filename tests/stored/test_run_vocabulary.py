"""The vocabulary of a run is made from its directory."""

import io
import json
import shutil
import types

import pytest
import sentencepiece

from t5x_like.errors import UserError
from t5x_like.runtime import run_files
from t5x_like.stored import run_vocabulary
from t5x_like.vocabularies import shipped, vocabulary_digest, vocabulary_files, vocabulary_kind
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.late import sentencepiece_model

pytestmark = pytest.mark.notf


@pytest.fixture
def run(tmp_path):
    """Returns a function that stores a vocabulary, and its model if it has one, in the directory of a run."""

    def store(vocabulary, model=None):
        (tmp_path / run_files.CONFIG).write_text("")
        digest, kind = vocabulary_digest.of_vocabulary(vocabulary), vocabulary_kind.of_vocabulary(vocabulary)
        run_vocabulary.store(str(tmp_path), digest, kind, "a_task", {"inputs": False})
        if model is not None:
            (tmp_path / run_files.TOKENIZER).mkdir()
            shutil.copy(model, tmp_path / run_files.TOKENIZER / "own.model")
        return str(tmp_path)

    return store


@pytest.mark.parametrize(
    ("vocabulary", "model"),
    [
        (shipped.byte_level(), None),
        (shipped.ByteVocabulary(), None),
        (shipped.python_docs(), None),
        (sentencepiece_model(str(shipped.PYTHON_DOCS_MODEL), 7), shipped.PYTHON_DOCS_MODEL),
    ],
    ids=["bytes", "bytes without sentinels", "shipped", "model with 7 sentinels"],
)
def test_vocabulary_of_a_run_has_its_ids(run, vocabulary, model):
    made = run_vocabulary.load(run(vocabulary, model))
    assert made.vocab_size == vocabulary.vocab_size
    assert list(made.encode("def main():")) == list(vocabulary.encode("def main():"))


def test_file_has_what_is_known(tmp_path):
    for digest, kind, names in (
        (None, None, None),
        ("a", None, {"digest"}),
        (None, vocabulary_kind.VocabularyKind("b", 3), {"kind", "ids", "probe", "task", "add_eos"}),
    ):
        run_vocabulary.store(str(tmp_path / str(names)), digest, kind, "a_task", {})
        file = tmp_path / str(names) / run_files.VOCABULARY
        expected = names and {*names, "hash"}
        assert (set(json.loads(file.read_text())) if file.exists() else None) == expected


def edit(file, **changes):
    """Changes entries of a file without a hash, as a run of an earlier version has written it."""
    about = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in about.items() if name != "hash"}))


def test_vocabulary_that_only_the_task_knows_is_not_made(run, tmp_path):
    assert run_vocabulary.load(run(sentencepiece_model(str(shipped.PYTHON_DOCS_MODEL), 7))) is None
    path = tmp_path / run_files.VOCABULARY
    edit(path, kind="ByteVocabulary")
    assert run_vocabulary.load(str(tmp_path)) is None  # the digest is another one
    path.write_text("{}")
    assert run_vocabulary.load(str(tmp_path)) is None  # a run of an earlier version


@pytest.mark.parametrize("lower_case", [True, False])
def test_settings_that_files_do_not_say_are_found_by_the_ids_of_a_text(run, tmp_path, lower_case):
    (tmp_path / run_files.TOKENIZER).mkdir()
    file = tmp_path / run_files.TOKENIZER / "vocab.txt"
    file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nIt\nit\n")
    directory = run(vocabulary_files.word_pieces(str(file), lower_case))
    assert run_vocabulary.load(directory).encode("It") == [6 if lower_case else 5]
    path = tmp_path / run_files.VOCABULARY
    edit(path, probe=None)
    assert run_vocabulary.load(directory) is None


def write_sentencepiece(directory, name, control, **special):
    """Trains a small model in a directory."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the river and the stone, 1, 2"] * 9),
        model_writer=model,
        vocab_size=34,
        control_symbols=control,
        minloglevel=2,
        hard_vocab_limit=False,
        **special,
    )
    directory.mkdir()
    (directory / name).write_bytes(model.getvalue())


def test_run_whose_numbers_had_other_ids_is_refused(run, tmp_path):
    copy = tmp_path / run_files.TOKENIZER
    write_sentencepiece(copy, "spiece.model", "[CLS],[SEP],[MASK]", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1)
    vocabulary = vocabulary_files.albert(str(copy / "spiece.model"), lower_case=True)
    directory = run(vocabulary)
    assert run_vocabulary.load(directory) == vocabulary
    now = vocabulary_kind.of_vocabulary(vocabulary)
    run_vocabulary.check_ids_are_equal(directory, now)
    edit(tmp_path / run_files.VOCABULARY, kind="AlbertVocabulary")
    for read in (run_vocabulary.load, lambda path: run_vocabulary.check_ids_are_equal(path, now)):
        with pytest.raises(UserError, match="spiece.model: stored by AlbertVocabulary of an earlier version, .* Start"):
            read(directory)
    # Data whose ids earlier versions stored keeps them.
    run_vocabulary.check_ids_are_equal(directory, now._replace(name="AlbertVocabulary"))


def test_resumed_run_whose_rare_characters_had_other_ids_is_named(run, tmp_path, caplog):
    (tmp_path / run_files.TOKENIZER).mkdir()
    file = tmp_path / run_files.TOKENIZER / "vocab.txt"
    file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nit\n")
    directory = run(vocabulary := vocabulary_files.word_pieces(str(file)))
    edit(tmp_path / run_files.VOCABULARY, kind="WordPieceVocabulary")
    run_vocabulary.check_ids_are_equal(directory, vocabulary_kind.of_vocabulary(vocabulary))
    assert "stored by WordPieceVocabulary of an earlier version, which encoded rare marks" in caplog.text


def test_vocabularies_of_earlier_versions_are_made(run, tmp_path):
    copy = tmp_path / run_files.TOKENIZER
    special = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
    write_sentencepiece(copy, "spm.model", "", eos_piece="[SEP]", unk_piece="[UNK]", **special)
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    directory = run(vocabulary := from_folder(copy))
    edit(tmp_path / run_files.VOCABULARY, kind="DebertaV2Vocabulary", probe="of earlier special tokens")
    assert run_vocabulary.load(directory) == vocabulary
    edit(tmp_path / run_files.VOCABULARY, kind="HuggingFaceSentencePieceVocabulary")
    assert run_vocabulary.load(directory) is None  # the ids of a text are others


def test_text_has_the_vocabulary_of_the_run_unless_the_user_names_another(run):
    directory, model = run(shipped.python_docs()), str(shipped.PYTHON_DOCS_MODEL)

    def of_text(**given):
        return run_vocabulary.of_text(directory, types.SimpleNamespace(**given))

    assert of_text().vocab_size == of_text(vocabulary_path=model).vocab_size == 1024
    assert of_text(task_arguments={"vocabulary_path": model}) is not None
    assert of_text(vocabulary_path="other.model") is None


def test_run_says_whether_inputs_end_with_eos_unless_the_user_names_another_task(run):
    directory = run(shipped.python_docs())

    def inputs_eos(**given):
        return run_vocabulary.inputs_eos(directory, types.SimpleNamespace(**given))

    assert inputs_eos() is inputs_eos(mixture_or_task_name="") is inputs_eos(mixture_or_task_name="a_task") is False
    assert inputs_eos(mixture_or_task_name="another_task") is None


def replace(file, before, after):
    file.write_text(file.read_text().replace(before, after))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "tokenizer/own.model").unlink(), "tokenizer/own.model: missing since the run stored it"),
        (lambda run: (run / "tokenizer/own.model").write_bytes(b"x"), "tokenizer/own.model: changed since the run"),
        (lambda run: (run / "vocabulary.json").write_text("{"), "vocabulary.json: damaged"),
        (lambda run: (run / "vocabulary.json").write_text("[1]"), "vocabulary.json: damaged"),
        (lambda run: (run / "vocabulary.json").write_text('{"%igest": "x"}'), "damaged, unknown key '%igest'"),
        (lambda run: replace(run / "vocabulary.json", '"ids": ', '"ids": 1'), "damaged, .* do not match their hash"),
    ],
)
def test_damaged_files_are_refused_by_name(run, tmp_path, damage, message):
    vocabulary = sentencepiece_model(str(shipped.PYTHON_DOCS_MODEL), 7)
    run(vocabulary, shipped.PYTHON_DOCS_MODEL)
    run(vocabulary)  # stores the hashes of the files
    assert run_vocabulary.read_digest(str(tmp_path)) is not None
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        run_vocabulary.read_digest(str(tmp_path))
