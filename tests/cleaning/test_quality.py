"""Rules for words and repetitions, duplicates of pages, and text of evaluation sets."""

import dataclasses
import gzip
import json
import random

import pytest

from t5x_like import clean as command
from t5x_like.cleaning import decontamination, duplicates, languages, pages, quality
from t5x_like.errors import UserError

WORDS = [f"w{number}ord" for number in range(300)]


def text(seed, words=120):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def rule(step, contents):
    """Returns the counter of the rule that removes a page, or `passed`."""
    record = pages.Record(step.namespace)
    found = list(step.process(pages.Page("http://a.example", contents), record))
    (name,) = record.counts
    assert bool(found) == (name == "passed")
    return name


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (text(0), "passed"),
        (text(0, 49), "filtered:too_few"),
        ("word " * 100_001, "filtered:too_many"),
        ("a bc " * 50, "filtered:too_short"),
        ("incomprehensible " * 50, "filtered:too_long"),
    ],
)
def test_words(contents, expected):
    assert rule(quality.Words(), contents) == expected


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (text(0), "passed"),
        ("\n".join([text(0)] + ["menu"] * 2), "filtered:lines"),
        ("\n".join([text(0, 60), text(1, 20), text(2, 20), text(3, 20), text(0, 60)]), "filtered:line_characters"),
        (f"{text(0, 60)} {'so it is ' * 20}", "filtered:top_ngram"),
        (f"{text(0, 60)} {text(1, 20)} {text(2, 5)} {text(1, 20)}", "filtered:repeated_ngrams"),
    ],
)
def test_repetition(contents, expected):
    assert rule(quality.Repetition(), contents) == expected


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ("word " * 20 + "# #", "passed"),  # 2 symbols, 22 words
        ("word " * 17 + "#a #b", "filtered:hashes"),  # 2 symbols, 19 words
        ("word... and so on… " * 3, "filtered:ellipses"),
        ("word " * 20 + "and # so...", "passed"),
    ],
)
def test_symbols(contents, expected):
    assert rule(quality.Symbols(), contents) == expected


def test_stop_words():
    step = quality.StopWords()
    assert rule(step, "We have lemons. That, we know!") == "passed"
    assert rule(step, "Have lemons, have oranges, have other behavior.") == "filtered"
    record = pages.Record(step.namespace)
    german = pages.Page("http://a.example", "Die Zitrone ist eine Frucht.", language="de")
    assert list(step.process(german, record)) == [german]
    assert record.counts == {"other_language": 1, "passed": 1}
    assert not list(step.process(dataclasses.replace(german, language="en"), record))


def cut(contents, evaluated, **settings):
    step = decontamination.Decontamination(patterns=["a"], window=3, min_characters=4, **settings)
    hashes = frozenset(digest for digest, _ in decontamination._ngrams(evaluated, step.ngram))
    record = pages.Record("a")
    return [page.text for page in step.cut(pages.Page("http://a.example", contents), record, hashes)], record.counts


def test_evaluated_text_is_cut_out():
    found, counts = cut("First part xx The answer, is TEN! y second part", "the answer is ten", ngram=4)
    assert found == ["First part", "second part"]
    assert counts == {"ngrams": 1, "cut": 1, "passed": 2}
    assert cut("The answer is nine. Why?", "the answer is ten", ngram=4)[0] == ["The answer is nine. Why?"]
    assert cut("xx The answer is ten yy zz", "the answer is ten", ngram=4)[1]["piece-filtered:too_short"] == 1
    many = " and then ".join(["some text, the answer is ten"] * 3)
    assert cut(many, "the answer is ten", ngram=4, max_pieces=2)[1]["filtered:too_many_pieces"] == 1


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clean(directory, *steps):
    settings = {"steps": steps, "output_format": "jsonl.gz", "shards": 1}
    cleaned = command.clean(data_files=f"{directory}/*.jsonl", output=str(directory / "out"), **settings)
    with gzip.open(next((directory / "out").glob("train-*")), "rt") as file:
        return cleaned, [json.loads(line) for line in file]


@pytest.mark.beam
def test_exact_duplicates_keep_the_same_page_in_any_order(tmp_path):
    rows = [{"url": f"http://a.example/{number}", "text": text(number // 3)} for number in range(9)]
    rows[1]["text"] = rows[1]["text"].upper().replace(" ", ",  ")
    kept = []
    for number, order in enumerate((rows, rows[::-1])):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number) / "a.jsonl", order)
        cleaned, found = clean(tmp_path / str(number), duplicates.ExactDuplicates())
        assert cleaned.counters["exact-duplicates"] == {"filtered": 6, "passed": 3}
        kept.append({row["url"] for row in found})
    assert kept[0] == kept[1]


@pytest.mark.beam
def test_exact_duplicates_of_equal_records_keep_the_same_file(tmp_path):
    """Pages that differ in their file alone are selected by its path."""
    for name in ("b.jsonl", "a.jsonl"):
        write(tmp_path / name, [{"url": "http://a.example", "text": "The same text."}])
    found = [pages.Page("http://a.example", "text", source=name) for name in ("a", "b")]
    assert duplicates._inverted_rank(found[0]) < duplicates._inverted_rank(found[1])
    _, rows = clean(tmp_path, duplicates.ExactDuplicates())
    assert [row["source"] for row in rows] == [f"{tmp_path}/b.jsonl"]


@pytest.mark.beam
@pytest.mark.clean
def test_near_duplicates(tmp_path):
    original = text(0, 400).split()
    changed = [*original[:200], "changed", *original[201:]]  # 5 of 396 n-grams differ: similarity 0.975
    other = [*original[:100], *text(1, 300).split()]  # similarity 0.14
    rows = [{"url": f"http://a.example/{n}", "text": " ".join(t)} for n, t in enumerate([original, changed, other])]
    write(tmp_path / "a.jsonl", rows)
    cleaned, found = clean(tmp_path, duplicates.NearDuplicates())
    assert cleaned.counters["near-duplicates"] == {"filtered": 1, "passed": 2}
    assert rows[2]["url"] in {row["url"] for row in found}
    assert [each.text[:27] for each in cleaned.examples] == ["similar to http://a.example"]


@pytest.mark.clean
def test_probability_of_near_duplicates():
    """Texts of similarity s share a band with the probability of the docstring."""
    step, rng = duplicates.NearDuplicates(ngram=1), random.Random(0)
    found = {}
    for similarity in (0.5, 0.69, 0.8):
        pairs = 60
        shared = round(200 * similarity)
        hits = 0
        for _ in range(pairs):
            numbers = rng.sample(range(10**9), 200)
            half = (200 - shared) // 2
            sets = [numbers[:shared] + numbers[shared : shared + half], numbers[:shared] + numbers[shared + half :]]
            first, second = (step.band_hashes(" ".join(f"w{number}" for number in each)) for each in sets)
            hits += any(a == b for a, b in zip(first, second, strict=True))
        found[similarity] = hits / pairs
    expected = {s: 1 - (1 - s**8) ** 14 for s in found}
    assert found == pytest.approx(expected, abs=0.2)  # three standard deviations of 60 draws


@pytest.mark.beam
def test_phrases_of_many_pages_are_not_cut_out(tmp_path):
    phrase, question = text("phrase", 13), text("question", 13)
    (tmp_path / "evaluation").mkdir()
    write(tmp_path / "evaluation" / "dev.jsonl", [{"question": phrase, "answer": question}])
    pages_of_text = [{"url": f"http://a.example/{n}", "text": f"{text(n)} {phrase} {text(n + 99)}"} for n in range(11)]
    pages_of_text[0]["text"] += f" {question} {text(1000)}"
    write(tmp_path / "a.jsonl", pages_of_text)
    step = decontamination.Decontamination(
        patterns=[f"{tmp_path}/evaluation/*.jsonl"], columns=["question", "answer"], window=10
    )
    cleaned, found = clean(tmp_path, step)
    counters = {name: number for name, number in cleaned.counters["decontamination"].items() if number}
    assert counters == {"ngrams": 1, "cut": 1, "passed": 12}
    pieces = [row["text"] for row in found if row["url"] == "http://a.example/0"]
    assert len(pieces) == 2 and phrase in pieces[0] + pieces[1] and question not in " ".join(pieces)


@pytest.mark.beam
def test_missing_column_of_an_evaluation_set_raises(tmp_path):
    (tmp_path / "evaluation").mkdir()
    write(tmp_path / "evaluation" / "dev.jsonl", [{"question": text(0)}])
    write(tmp_path / "a.jsonl", [{"url": "http://a.example", "text": text(1)}])
    step = decontamination.Decontamination(patterns=[f"{tmp_path}/evaluation/*.jsonl"])
    with pytest.raises(UserError, match=r"dev.jsonl:1: the line has no field 'text'.*Decontamination.columns"):
        clean(tmp_path, step)


def test_marks_belong_to_words():
    """Vowel signs of Hindi, and accents that are not composed; not the variation selector of an emoji."""
    found = pages.word_pattern().findall("\u0939\u093f\u0928\u094d\u0926\u0940, cafe\u0301s! \u2764\ufe0f x_1")
    assert found == ["\u0939\u093f\u0928\u094d\u0926\u0940", "cafe\u0301s", "x_1"]
    step = decontamination.Decontamination(patterns=["a"], ngram=2)
    ((_, span),) = decontamination._ngrams("\u0915\u0940 \u0939\u0948", step.ngram)
    assert span == (0, 5)
    assert duplicates._words("\u0915\u0940") != duplicates._words("\u0915\u093f")


def test_invalid_settings_raise(tmp_path):
    with pytest.raises(UserError, match="NearDuplicates.bands=0 is not positive"):
        duplicates.NearDuplicates(bands=0).check()
    with pytest.raises(UserError, match="OneLanguage.min_probability=99 is not a probability. Give 0 to 1"):
        languages.OneLanguage(min_probability=99).check()
    with pytest.raises(UserError, match=r"Languages.languages='en' is not a list. Give \['en'\]"):
        languages.Languages(languages="en").check()
    with pytest.raises(UserError, match="is not a list of patterns"):
        decontamination.Decontamination(patterns="a").check()
    with pytest.raises(UserError, match="Decontamination.columns='text' is not a list of columns"):
        decontamination.Decontamination(patterns=["a"], columns="text").check()
    with pytest.raises(UserError, match="no file matches"):
        decontamination.Decontamination(patterns=[f"{tmp_path}/*.jsonl"]).check()
