"""`t5x_like vocabulary` writes the files that the tasks over text files read."""

import errno
import json
import random

import pytest
import sentencepiece
import seqio

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.vocabulary_training import sample, trainers
from t5x_like import cli, config, paths
from t5x_like.data import task_arguments
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import RunFailed, UserError
from t5x_like.vocabularies import late
from t5x_like.vocabulary import vocabulary

TEXT = "The naïve café — Zwölf Boxkämpfer, 2026!\n\tdon't  stop\n"
# Kind -> task, its text after encoding and decoding, and the gin files and settings of a tiny model.
KINDS = {
    "sentencepiece": ("text_files_span_corruption", TEXT, ["models/t5_1_1/tiny.gin", "runs/pretrain.gin"], "T5Config"),
    "sentencepiece_bpe": (
        "text_files_causal_lm",
        TEXT,
        ["models/gpt2/tiny.gin", "runs/gpt.gin"],
        "GPTConfig",
    ),
    "wordpiece": (
        "text_files_sentence_pairs",
        "the naive cafe — zwolf boxkampfer, 2026! don ' t stop",
        ["models/bert/tiny.gin", "runs/bert.gin"],
        "BertConfig",
    ),
    "byte_bpe": ("text_files_causal_lm_byte_bpe", TEXT, ["models/gpt2/tiny.gin", "runs/gpt.gin"], "GPTConfig"),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Returns a directory with text in both kinds of files: random words, and every character of `TEXT`."""
    directory = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    syllables = ["ba", "lo", "mi", "tur", "ne", "sha", "gri", "pol", "ven", "ock"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(rng.choices(words, k=8)) + ".\n" for _ in range(600)]
    (directory / "a.txt").write_text("".join(lines[:300]) + TEXT * 3, encoding="utf-8")
    records = [json.dumps({"text": line}) for line in lines[300:]]
    (directory / "b.jsonl").write_text("\n".join(records), encoding="utf-8")
    return directory


def vocabulary_of(task, path):
    """Returns the vocabulary of a task's targets for a `vocabulary_path`."""
    task_arguments.update([task], {"pattern": "none", "vocabulary_path": path})
    return seqio.TaskRegistry.get(task).output_features["targets"].vocabulary


@pytest.fixture(autouse=True)
def reset_arguments():
    yield
    for task, *_ in KINDS.values():
        task_arguments.update([task], {})


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_works_with_its_task_and_a_tiny_model(kind, texts, tmp_path, capsys):
    pytest.importorskip("tokenizers")
    task, expected, files, model = KINDS[kind]
    directory = str(tmp_path / "out")
    path = vocabulary(pattern=f"{texts}/*", kind=kind, size=400, output=directory)
    found = vocabulary_of(task, path)
    assert found.vocab_size == 400 + found.extra_ids
    assert found.decode(found.encode(TEXT)) == expected
    printed = capsys.readouterr().out
    assert task in printed and path in printed and f"vocab_size = {found.vocab_size} or more" in printed
    bindings = [
        ("MIXTURE_OR_TASK_NAME", task),
        ("TASK_ARGUMENTS", repr({"pattern": f"{texts}/*.txt", "vocabulary_path": path})),
        (f"{model}.vocab_size", "512"),
        ("TRAIN_STEPS", "2"),
    ]
    config.load("t5x_like.train.train", files=["commands/train.gin", *files], bindings=bindings, given=("run_config",))


def test_special_token_ids(texts, tmp_path):
    pytest.importorskip("tokenizers")
    found = {
        kind: vocabulary_of(
            task, vocabulary(pattern=f"{texts}/a.txt", kind=kind, size=400, output=str(tmp_path / kind))
        )
        for kind, (task, *_) in KINDS.items()
    }
    t5, bert, gpt2 = found["sentencepiece"], found["wordpiece"], found["byte_bpe"]
    assert (t5.pad_id, t5.eos_id, t5.unk_id, t5.extra_ids) == (0, 1, 2, 100)
    assert t5.decode([t5.vocab_size - 1]) == "<extra_id_0>"
    assert bert.pieces[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert gpt2.eos_id == gpt2.bos_id == 399


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_training_is_deterministic(kind):
    pytest.importorskip("tokenizers")
    rng = random.Random(1)
    documents = ["".join(rng.choices("abcdefgh ", k=200)) for _ in range(50)]
    assert trainers.KINDS[kind](documents, 300) == trainers.KINDS[kind](documents, 300)


def test_pieces_of_sentencepiece_bpe_are_merges(texts, tmp_path):
    """Unigram keeps pieces by their likelihood; BPE joins the two pieces that are most frequent beside each other."""
    (tmp_path / "a.txt").write_text("ab ab ab ab abc abc d\n")
    path = vocabulary(pattern=f"{tmp_path}/a.txt", kind="sentencepiece_bpe", size=270, output=str(tmp_path / "out"))
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    assert [model.id_to_piece(index) for index in range(260, 264)] == ["ab", "▁ab", "▁abc", "▁d"]
    assert model.encode("abc", out_type=str) == ["▁abc"]
    with pytest.raises(UserError, match=r"SIZE=9000: too large for this text. Give at most \d+, or more text"):
        vocabulary(pattern=f"{tmp_path}/a.txt", kind="sentencepiece_bpe", size=9000, output=str(tmp_path / "large"))
    with pytest.raises(UserError, match=r"SIZE=100: too small"):
        vocabulary(pattern=f"{tmp_path}/a.txt", kind="sentencepiece_bpe", size=100, output=str(tmp_path / "small"))


@pytest.mark.parity
def test_transformers_reads_the_written_files(texts, tmp_path):
    pytest.importorskip("tokenizers")
    import transformers

    for kind, tasks in (
        ("wordpiece", ("text_files_sentence_pairs", "text_files_masked_lm")),
        ("byte_bpe", ("text_files_causal_lm_byte_bpe", "text_files_causal_lm")),
    ):
        path = vocabulary(pattern=f"{texts}/*.txt", kind=kind, size=400, output=str(tmp_path / kind))
        reference = transformers.AutoTokenizer.from_pretrained(path)
        ids = reference.convert_tokens_to_ids(reference.tokenize(TEXT))
        for task in tasks:
            assert vocabulary_of(task, path).encode(TEXT) == ids


def test_cased_wordpiece_keeps_case(texts, tmp_path):
    pytest.importorskip("tokenizers")
    path = vocabulary(
        pattern=f"{texts}/*.txt", kind="wordpiece", size=400, output=str(tmp_path / "cased"), lower_case=False
    )
    pieces = (tmp_path / "cased" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert {"T", "Z", "ï"} <= set(pieces)
    assert vocabulary_of("text_files_masked_lm", path).encode("T") != vocabulary_of(
        "text_files_masked_lm", path
    ).encode("t")


def test_larger_text_is_sampled(texts, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setitem(
        trainers.KINDS, "sentencepiece", lambda documents, size: seen.extend(documents) or {"a.model": b"x"}
    )
    vocabulary(pattern=f"{texts}/*", size=400, output=str(tmp_path / "out"), max_bytes=8_000)
    size = sum(len(document.encode()) for document in seen)
    assert 2_000 < size < 16_000
    assert any(len(document) < 200 for document in seen), "the sample lacks records of the second file"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pattern": "nothing/*.txt"}, "pattern 'nothing/.*: no file matches .*nothing"),
        (
            {"kind": "bpe"},
            "KIND=bpe: unknown kind of vocabulary. Give one of sentencepiece, sentencepiece_bpe, wordpiece",
        ),
        ({"size": 0}, "SIZE=0"),
        ({"size": 400_000}, r"SIZE=400000: too large for this text. Give at most \d+"),
        ({"size": 400_000, "kind": "wordpiece"}, r"SIZE=400000: too large for this text. Give at most \d+"),
        ({"size": 400_000, "kind": "byte_bpe"}, r"SIZE=400000: too large for this text. Give at most \d+"),
        ({"size": 260}, r"SIZE=260: too small for the alphabet of this text. Give at least \d+"),
        ({"size": 20, "kind": "wordpiece"}, r"SIZE=20: too small for the alphabet of this text. Give at least \d+"),
        ({"size": 256, "kind": "byte_bpe"}, "SIZE=256: too small for the alphabet of this text. Give at least 257"),
        ({"lower_case": True}, "LOWER_CASE=True: not supported by SentencePiece"),
        ({"domains": {"de": "nothing/*.txt"}}, "pattern 'nothing/.*: no file matches .*nothing"),
        ({"domains": "books/*.txt"}, "DOMAINS='books/.*.txt' is not a dictionary"),
        ({"beam": "--runner=DirectRunner"}, "BEAM='--runner=DirectRunner' is not a list of pipeline options"),
        ({"size": 3, "kind": "words"}, "SIZE=3: too small for 3 special ids and a word. Give at least 4"),
    ],
)
def test_invalid_arguments_raise(changed, message, texts, tmp_path):
    if changed.get("kind") in ("wordpiece", "byte_bpe"):
        pytest.importorskip("tokenizers")
    with pytest.raises(UserError, match=message):
        vocabulary(**({"pattern": f"{texts}/*.txt", "size": 400, "output": str(tmp_path / "out")} | changed))
    assert not list((tmp_path / "out").glob("*"))


def test_non_empty_output_needs_overwrite(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(trainers.KINDS, "sentencepiece", lambda documents, size: {"sentencepiece.model": b"new"})
    (tmp_path / "sentencepiece.model").write_bytes(b"old")
    with pytest.raises(UserError, match=r"not empty \(sentencepiece.model\).*--overwrite"):
        vocabulary(pattern=f"{texts}/*.txt", output=str(tmp_path))
    assert (tmp_path / "sentencepiece.model").read_bytes() == b"old"
    vocabulary(pattern=f"{texts}/*.txt", output=str(tmp_path), overwrite=True)
    assert (tmp_path / "sentencepiece.model").read_bytes() == b"new"


def test_full_disk_leaves_no_files(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(trainers.KINDS, "wordpiece", lambda documents, size: {"vocab.txt": b"a", "config.json": b"b"})
    write = paths.write_atomic

    def full(path, contents):
        if path.endswith("config.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, contents)

    monkeypatch.setattr(paths, "write_atomic", full)
    with pytest.raises(RunFailed, match="OUTPUT_PATH=.*config.json cannot be written: No space left on device. Free"):
        vocabulary(pattern=f"{texts}/*.txt", kind="wordpiece", output=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_output_below_a_file_raises_before_reading_text(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="OUTPUT_PATH=.*file/x: .*file is not a directory"):
        vocabulary(pattern="nothing/*.txt", output=str(tmp_path / "file" / "x"))


def test_task_without_vocabulary_path_raises():
    task = "text_files_causal_lm_byte_bpe"
    task_arguments.update([task], {"pattern": "none"})
    with pytest.raises(UserError, match="needs task_arguments {'vocabulary_path'.*--kind=byte_bpe"):
        _ = seqio.TaskRegistry.get(task).output_features["targets"].vocabulary.vocab_size


def test_command_line_flags_set_macros():
    parsed = cli.parse(["vocabulary", "--pattern=books/*.txt", "--kind=wordpiece", "--size=9", "--overwrite"])
    resolved = config.load(
        "t5x_like.vocabulary.vocabulary", files=["commands/vocabulary.gin"], bindings=parsed.bindings
    )
    assert (resolved.macros["KIND"], resolved.macros["SIZE"], resolved.macros["OVERWRITE"]) == ("wordpiece", 9, True)


SPECIAL_PIECES = {
    "albert": {0: "<pad>", 1: "<unk>", 2: "[CLS]", 3: "[SEP]", 4: "[MASK]"},
    "xlnet": dict(enumerate(("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"))),
    "bigbird": {0: "<pad>", 1: "</s>", 2: "<s>", 65: "[CLS]", 66: "[SEP]", 67: "[MASK]", 100: "<unk>"},
    "mt5": {0: "<pad>", 1: "</s>", 2: "<unk>", 3: "<0x00>", 258: "<0xFF>"},
}


@pytest.mark.parametrize("kind", SPECIAL_PIECES)
def test_special_pieces_have_the_ids_of_published_models(kind, texts, tmp_path):
    path = vocabulary(pattern=f"{texts}/*", kind=kind, size=335, output=str(tmp_path))
    found = late.LateVocabulary(lambda: path).vocabulary
    (name,) = tmp_path.glob("*.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(name))
    assert {index: model.id_to_piece(index) for index in SPECIAL_PIECES[kind]} == SPECIAL_PIECES[kind]
    assert model.get_piece_size() == 335 and found.vocab_size == 335 + found.extra_ids
    assert found.decode(found.encode("bamitur lo.")) == "bamitur lo."
    symbols = {index for index, piece in SPECIAL_PIECES[kind].items() if "CLS" in piece or "cls" in piece}
    assert not set(model.encode("[CLS] <cls>")) & symbols  # no text contains them
    assert (found.encode("BA") == found.encode("ba")) == (kind == "albert")


def test_vocabulary_of_bytes(texts, tmp_path):
    path = vocabulary(pattern=f"{texts}/*", kind="bytes", output=str(tmp_path / "out"))
    found = late.LateVocabulary(lambda: path).vocabulary
    assert found.vocab_size == 384 and found.encode("aé") == [100, 198, 172]
    assert found.decode(found.encode(TEXT)) == TEXT
    with pytest.raises(UserError, match="KIND=bytes has 384 ids"):
        vocabulary(pattern=f"{texts}/*", kind="bytes", size=500, output=str(tmp_path / "500"))
    with pytest.raises(UserError, match="not supported by KIND=mt5"):
        vocabulary(pattern=f"{texts}/*", kind="mt5", lower_case=True, output=str(tmp_path / "mt5"))


def test_coverage_of_domains_is_printed(texts, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("de\u0301s de\u0301s x\n")  # a mark is a part of its word
    domains = {"other": f"{tmp_path}/other.txt", "same": f"{texts}/a.txt"}
    vocabulary(pattern=f"{texts}/*", kind="bytes", output=str(tmp_path / "out"), domains=domains)
    header, other, same = capsys.readouterr().out.splitlines()[-3:]
    assert header.split("  ")[-5:] == ["tokens per word", "bytes per token", "whole words", "unknown", "used"]
    # 14 bytes in 3 words, of which one is a byte; 8 of 384 ids.
    assert other.split() == ["other", "4.667", "1.000", "0.333", "0.000", f"{8 / 384:.3f}"]
    assert same.split()[0] == "same"


def test_sample_does_not_depend_on_the_order_of_documents():
    """Short documents with large hashes do not take the place of a long document that does not fit."""
    rng = random.Random(0)
    places = [sample._Place(0, number, rng.randbytes(rng.choice([5, 400]))) for number in range(60)]
    found = []
    for _ in range(20):
        rng.shuffle(places)
        kept, size = sample._smallest(iter(places), 2_000, files=1)
        found.append(sorted(kept))
        assert size == sum(len(place.text) for place in places)
    assert found == found[:1] * 20 and 0 < sum(len(place.text) for place in found[0]) <= 2_000


@pytest.mark.parametrize("max_bytes", [1, 40_000, 400_000, 4_000_000])
def test_workers_of_beam_select_the_sample_of_few_long_documents(max_bytes):
    rng = random.Random(0)
    places = [sample._Place(0, number, rng.randbytes(16) + bytes((1 << 15) - 16)) for number in range(600)]
    total = sum(len(place.text) for place in places)
    selected = [place for place in places if sample._is_wanted(place, max_bytes, total)]
    drawn, from_selected = (sorted(sample._smallest(iter(each), max_bytes, 1)[0]) for each in (places, selected))
    assert drawn == from_selected and len(selected) < len(places)


@pytest.mark.beam
def test_beam_draws_the_same_sample(texts, tmp_path):
    alone = sample.draw(f"{texts}/*", 8_000, SkippedRecords())
    with_beam = sample.draw(f"{texts}/*", 8_000, SkippedRecords(), beam=[], directory=str(tmp_path))
    assert with_beam == alone and 0 < len(alone.documents) < 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.beam
def test_bad_record_is_named_without_the_transform_of_beam(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "lemon"}')
    with pytest.raises(UserError, match=r"a.jsonl:1: the line has no field 'text'") as error:
        sample.draw(f"{tmp_path}/*", 8_000, SkippedRecords(), beam=[], directory=str(tmp_path))
    assert "while running" not in str(error.value)
