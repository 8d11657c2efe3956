"""The configurations of C4 give the pages and the counters of the original code, a part of TensorFlow Datasets."""

import collections
import gzip
import hashlib
import json
import random
import sys
import types

import pytest
import web_archives

from t5x_like.cleaning import detectors, sentences

pytestmark = [pytest.mark.beam, pytest.mark.clean]

beam = pytest.importorskip("apache_beam")
langdetect_rs = pytest.importorskip("langdetect_rs")
c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")

LINES = [
    *web_archives.LEMON.splitlines(),
    *web_archives.SHOP.splitlines(),
    *web_archives.RUDE.splitlines(),
    *web_archives.GERMAN.splitlines(),
    "Lorem Ipsum is what printers have written for many years.",
    "A page with code has a { somewhere in a line of text.",
    "A line with one word that is much longer: " + "a" * 1001 + " is left out.",
    "See our Privacy Policy for what we do with your data.",
    "Dr. Smith went home at 5 p.m. to see what Mr. Jones had done. He was tired!",
    'He said: "Lemons are sour, and I do not like them at all."',
    "Is this a line with [12] citations [] and [edit] marks, or not?",
    "Content-Length: a line that looks like a header of a record.",
    "WARC files are archives of pages, and this line is dropped.",
    "   Spaces before a line are not a part of the line.  ",
    "12345 67890 12345 67890 12345.",
    "这是一个关于柠檬的网页。这是一个关于柠檬的网页.",
    "Wait for it, there is more to come on the next page...",
]

PARAGRAPHS = [line for text in ("SHOP", "RUDE", "GERMAN") for line in getattr(web_archives, text).splitlines()]
UNDATED = "no date"  # removed from the archive, because its library would write the time of writing
DIGITS = "".join(f"12345 67890 12345 67890 {number}!\n" for number in range(5))
"""Text without letters, whose language is not known."""
ORANGE = """Die Orange wächst an einem Baum, der das ganze Jahr über grüne Blätter trägt.
Man presst aus der Frucht einen Saft, den viele Menschen am Morgen gerne trinken.
Ihre Schale ist dick, und sie schützt das Innere vor der Sonne und vor der Kälte.
"""
"""A German page whose lines no other page has."""
SAME = "".join(f"{number} " + " ".join(PARAGRAPHS[:4]) + "\n" for number in range(3))
PARDONED = "".join(f"{number} " + 2 * web_archives.RUDE.replace("\n", " ") + "\n" for number in range(3))
_REMOVED, _OF = (0.999).as_integer_ratio()
PARDONED_URL = next(
    url
    for url in (f"http://example.org/rude/{number}" for number in range(100_000))
    if int(hashlib.md5(c4_utils.normalize_url(url).encode()).hexdigest(), 16) % _OF >= _REMOVED
)
"""A URL whose hash is among the thousandth with which pages with bad words are kept in mC4."""
DOMAINS = {"example.com": ["news", "shop"], "example.org": "all"}
LISTED = "https://example.org/lemon\nhttp://example.org/nowhere\nexample.org/farm/\nhttp://www.news.example.com/digits\nhttp://www.news.example.com/de\n"


def random_pages(seed, number=120):
    """Returns (URL, text, date) of pages of random lines, some of them with the same URL."""
    rng = random.Random(seed)
    pages = [(url, text, "2026-01-02T03:04:05Z") for url, text in web_archives.PAGES.items()]
    for index in range(number):
        lines = rng.choices(LINES, k=rng.randint(1, 12))
        if index % 5 == 0:
            lines += [f"{number} " + " ".join(rng.choices(PARAGRAPHS, k=4)) for number in range(rng.randint(2, 4))]
        if rng.random() < 0.5:
            lines += [f"This is sentence {rng.random()} of a page about lemons and other fruit." for _ in range(4)]
        host = rng.choice(["www.news.example.com", "blog.example.com", "example.org", "bbc.co.uk"])
        url = f"http{rng.choice(['', 's'])}://{host}/{index // 2}{rng.choice(['', '/', '?utm_a=1', '?ref=2'])}"
        pages.append((url, "\n".join(lines), f"20{rng.randint(10, 26)}-01-02T03:04:{index % 60:02d}Z"))
    date = "2026-01-02T03:04:05Z"
    pages += [(f"http://example.org/{name}", SAME, date) for name in ("same", "again")]  # the second one loses all
    pages += [(PARDONED_URL, PARDONED, date)]
    pages += [
        *((f"http://www.news.example.com/{name}", text, date) for name, text in (("digits", DIGITS), ("de", ORANGE))),
        ("http://example.org/undated", SAME, UNDATED),
    ]
    pages.append(("http://example.org/long", "This sentence is one of very many sentences.\n" * 5000, "2026"))
    return pages


@pytest.fixture(scope="module")
def crawl(tmp_path_factory):
    """Returns a directory with archives, words, domains and URLs."""
    directory = tmp_path_factory.mktemp("crawl")
    pages = random_pages(0)
    for number in range(3):
        dates = collections.defaultdict(list)
        for url, text, date in pages[number::3]:
            dates[date].append((url, text))
        path = directory / f"{number}.wet.gz"
        web_archives.write_dated(path, dates)
        data = gzip.decompress(path.read_bytes()).replace(f"WARC-Date: {UNDATED}\r\n".encode(), b"")
        path.write_bytes(gzip.compress(data))
    (directory / "words.txt").write_text("dratted\nfive percent\n")
    (directory / "domains.json").write_text(json.dumps(DOMAINS))
    (directory / "urls.txt").write_text(LISTED + "".join(f"{url}\n" for url, *_ in pages[::3]))
    return directory


def original(crawl, monkeypatch, config):
    """Returns the counters and the pages of the original code, in the order of its `_get_pages_pcollection`."""
    monkeypatch.setattr(c4_utils, "_SENTENCE_TOKENIZER", collections.namedtuple("T", "tokenize")(sentences.splitter()))
    words = {"en": ["dratted", "five percent"]}
    run = beam.Pipeline()
    pages = run | beam.Create([str(path) for path in sorted(crawl.glob("*.wet.gz"))])
    pages = pages | beam.FlatMap(c4_utils.split_wet_file) | beam.Filter(c4_utils.is_valid_length)
    if config == "realnewslike":
        pages |= beam.Filter(lambda page: c4_utils.is_realnews_domain(page, DOMAINS))
    pages = (
        pages
        | "normalize" >> beam.Map(lambda p: (p.normalized_url, p))
        | "newest" >> beam.GroupByKey()
        | beam.Map(lambda found: c4_utils.select_newest_page(found[1])).with_output_types(c4_utils.PageFeatures)
    )
    if config == "webtextlike":
        urls = run | beam.io.ReadFromText(str(crawl / "urls.txt"))
        urls |= beam.Map(lambda url: (c4_utils.normalize_url(url), c4_utils.PageFeatures()))
        keyed = pages | "by URL" >> beam.Map(lambda p: (p.normalized_url, p))
        pages = {"pages": keyed, "webtextlike_urls": urls} | "join" >> beam.CoGroupByKey()
        pages |= "listed" >> beam.FlatMap(c4_utils.filter_by_webtextlike)
    if config == "multilingual":
        pages |= beam.Filter(c4_utils.paragraph_filter)
    elif config != "en_noclean":
        pages |= "clean" >> beam.FlatMap(c4_utils.get_clean_page_fn())
    if config != "en_noclean":
        pages = c4_utils.remove_duplicate_text(pages, **({"min_num_sentences": 0} if config == "multilingual" else {}))
    if config == "multilingual":
        pages = c4_utils.detect_languages(pages, valid_languages=["en", "de"])
    else:
        pages |= beam.FlatMap(c4_utils.detect_english)
    if config != "en_noclean":
        fraction = 0.999 if config == "multilingual" else 1.0
        pages |= beam.Filter(c4_utils.get_badwords_filter_fn(words, filter_fraction=fraction))
    path = str(crawl / config)
    _ = pages | "row" >> beam.Map(lambda p: repr((p.url, p.text, p.timestamp))) | beam.io.WriteToText(path)
    result = run.run()
    result.wait_until_finish()
    counters = collections.defaultdict(dict)
    for metric in result.metrics().query()["counters"]:
        counters[metric.key.metric.namespace][metric.key.metric.name] = metric.committed
    lines = [line for file in crawl.glob(f"{config}-*") for line in file.read_text().splitlines()]
    return counters, sorted(eval(line) for line in lines)


class FakeIdentifier:
    """The interface of CLD3, whose library cannot be loaded after TensorFlow, on the results of another library."""

    def __init__(self, **options):
        assert options == {"min_num_bytes": 100, "max_num_bytes": 10_000}

    def FindLanguage(self, text):  # noqa: N802
        langdetect_rs.DetectorFactory.seed = 0
        found = langdetect_rs.detect_langs(text)[0]
        return types.SimpleNamespace(language=found.lang, probability=found.prob, is_reliable=len(text) > 900)


def test_held_out_pages_equal_the_original(tmp_path, run_command):
    """Of C4's splits: the pages whose normalized URL has an MD5 hash that 1,000 divides."""
    ends = ("", "/", "?utm_source=a")
    urls = [f"http{'s' * (n % 2)}://{'www.' * (n % 3 // 2)}Example.org/{n}{ends[n % 3]}" for n in range(4000)]
    records = "".join(json.dumps({"url": url, "text": f"Text {n}."}) + "\n" for n, url in enumerate(urls))
    (tmp_path / "pages.jsonl").write_text(records)
    is_held_out = c4_utils.get_hashed_url_filter_fn(predicate_fn=lambda value: value % 1000 == 0)
    expected = []
    for url in urls:
        page = c4_utils.PageFeatures(url=url, normalized_url=c4_utils.normalize_url(url))
        expected += [url] * is_held_out(page)
    words = [f"--input={tmp_path}/pages.jsonl", f"--output={tmp_path}/out", "--gin.STEPS=[]"]
    code, printed = run_command(["clean", *words])
    assert code == 0, printed
    (tmp_path / "validation").mkdir()
    for split in ("train", "validation"):
        directory = tmp_path / f"only {split}"
        directory.mkdir()
        for path in (tmp_path / "out").glob(f"{split}-*"):
            path.rename(directory / path.name)
        (directory / "counters.json").write_text('{"counters": {}}')
    held_out = [page["url"] for page in web_archives.read_cleaned(tmp_path / "only validation")[1]]
    assert held_out == sorted(expected) and 1 < len(held_out) < 12
    assert len(web_archives.read_cleaned(tmp_path / "only train")[1]) == len(urls) - len(held_out)


SETTINGS = {
    "en": ["--gin.BAD_WORDS={'en': '%s/words.txt'}"],
    "en_noclean": [],
    "realnewslike": ["--gin.BAD_WORDS={'en': '%s/words.txt'}", "--gin.DOMAINS_PATH=%s/domains.json"],
    "webtextlike": ["--gin.BAD_WORDS={'en': '%s/words.txt'}", "--gin.URLS=%s/urls.txt"],
    "multilingual": ["--gin.BAD_WORDS={'en': '%s/words.txt'}", "--gin.LANGUAGES=('en', 'de')"],
}


# Counters of this project alone, for files that cannot be read.
NEVER = {
    ("split-wet-file", name) for name in ("bad-record", "damaged-file", "empty-file", "other-record", "html-response")
}
# langdetect has a prediction for each of these pages with letters, and C4 keeps no page with a bad word.
_ENGLISH = {("english-filter", "filtered:no_predictions"), ("badwords-filter", "soft-passed")}
NEVER_IN = {
    **dict.fromkeys(("en", "realnewslike", "webtextlike"), _ENGLISH),
    "en_noclean": {("english-filter", "filtered:no_predictions")},
    "multilingual": {("dedupe-lines", "filtered:too_few_sentences")},  # pages of one sentence may stay
}


@pytest.mark.parametrize("config", SETTINGS)
def test_pages_and_counters_equal_the_original(config, crawl, tmp_path, monkeypatch, run_command):
    fake = types.SimpleNamespace(NNetLanguageIdentifier=FakeIdentifier)
    monkeypatch.setitem(sys.modules, "gcld3", fake)
    detectors.detector.cache_clear()
    expected_counters, expected_pages = original(crawl, monkeypatch, config)
    words = [each.replace("%s", str(crawl)) for each in SETTINGS[config]]
    output = tmp_path / "out"
    code, printed = run_command(
        ["clean", f"--gin_file=corpora/c4_{config}.gin", f"--input={crawl}/*.wet.gz", f"--output={output}", *words]
    )
    assert code == 0, printed
    counters, pages = web_archives.read_cleaned(output)
    assert [(page["url"], page["text"], page["timestamp"]) for page in pages] == expected_pages
    assert len(pages) >= 2
    badwords = {name.rpartition("-")[2] for name in expected_counters if name.startswith("badwords-filter-")}
    for language in badwords:
        for name, number in expected_counters.pop(f"badwords-filter-{language}").items():
            expected_counters["badwords-filter"][f"{language}:{name}"] = number
    found = {name: {key: n for key, n in each.items() if n} for name, each in counters.items()}
    expected = {name: {key: n for key, n in each.items() if n} for name, each in expected_counters.items()}
    assert found == expected
    # Each rule has removed something; `ignored_language` is counted per language.
    unseen = {
        (name, key)
        for name, each in counters.items()
        for key, number in each.items()
        if not number and not any(other.startswith(f"{key}-") for other in each)
    }
    assert unseen == NEVER | NEVER_IN[config]
