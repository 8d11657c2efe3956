"""Writes web archives with pages of text, as Common Crawl's WET files."""

import io
import json

import zstandard

LEMON = """Menu

Lemon

Introduction

The lemon, Citrus limon, is a small evergreen tree of the family Rutaceae.[1] It is grown for juice.[citation needed]
The juice is used for cooking, and also for cleaning brass and copper.[edit]
The juice of the lemon is about five percent citric acid.
the juice of the LEMON is about five percent citric acid.

Article

The origin of the lemon is unknown, although it may have first grown in Assam.
A study of the genes of lemons found that they are a cross of two fruits.
And so it goes on...
Please enable JavaScript to use our site.
Home
Products
Shipping
Contact
FAQ
Dried lemons, $3.59 per pound
By using this site you agree that it uses cookies for your convenience.
"""
"""A page with menus, citations, a notice about JavaScript, short lines, a line twice, and text about lemons."""

PLACEHOLDER = """Organic dried lemons come from our farm in the hills of California.
Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor.
Curabitur in tempus quam, which is a line that nobody ever reads.
"""
CODE = """This page explains to you how a ball can be drawn with a script.
The function Ball(r) { this.radius = r; } has the area pi * r ** 2.
A third sentence, so that the page is long enough without the second.
"""
SHORT = """A lemon is a fruit that grows on trees in warm countries.
It is sour. Yes.
"""
SHOP = """The juice of the lemon is about five percent citric acid.
Our shop sells lemons that we pick by hand in the early morning.
Every customer gets a free recipe for a cake with lemons and cream.
We send all orders within two days, except at the end of the year.
"""
GERMAN = """Die Zitrone ist die Frucht eines kleinen Baumes, der im Süden wächst und gedeiht.
Der Saft der Zitrone wird in der Küche verwendet, und man reinigt damit auch Kupfer.
Die Herkunft der Zitrone ist nicht bekannt, sie stammt aber vielleicht aus Indien.
"""
RUDE = """We think that lemons are the best fruit of the whole world.
Do you think that the dratted oranges are a good fruit, too?
Nobody who has tasted both of them would ever say such a thing.
"""
PAGES = {
    "https://www.example.org/lemon/": LEMON,
    "http://example.org/farm": PLACEHOLDER,
    "http://example.org/ball": CODE,
    "http://example.org/short": SHORT,
    "http://shop.example.com/lemons?utm_source=mail": SHOP,
    "http://example.de/zitrone": GERMAN,
    "http://example.org/rude": RUDE,
}
"""URL -> text."""


def write(path, pages, *, date="2026-01-02T03:04:05Z", **options):
    """Writes an archive with pages of one date; see `write_dated`.

    Args:
      path: The file.
      pages: URL -> text, or a list of pairs. A text may be bytes.
      date: Date of the pages.
      **options: See `write_dated`.
    """
    write_dated(path, {date: list(pages.items()) if isinstance(pages, dict) else pages}, **options)


def write_dated(path, dates, *, kind="conversion", content_type="text/plain"):
    """Writes an archive, compressed if its name ends in .gz, with a description as its first record.

    Args:
      path: The file.
      dates: Date -> list of (URL, text).
      kind: Type of the records.
      content_type: Type of their contents.
    """
    from warcio.warcwriter import WARCWriter

    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=str(path).endswith(".gz"))
        writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "a test"}))
        for date, pages in dates.items():
            for url, text in pages:
                payload = io.BytesIO(text if isinstance(text, bytes) else text.encode())
                headers = {
                    "payload": payload,
                    "warc_content_type": content_type,
                    "warc_headers_dict": {"WARC-Date": date},
                }
                writer.write_record(writer.create_warc_record(url, kind, **headers))


def write_crawl(path, responses, logs=()):
    """Writes an archive as wget does: requests and HTTP responses, and its logs as resources.

    Args:
      path: The file.
      responses: List of (URL, status, headers, body).
      logs: Names of logs.
    """
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=str(path).endswith(".gz"))
        writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "Wget/1.21.4"}))
        for url, status, headers, body in responses:
            request = StatusAndHeaders("GET / HTTP/1.1", [("Accept", "*/*")], is_http_request=True)
            writer.write_record(writer.create_warc_record(url, "request", io.BytesIO(b""), http_headers=request))
            response = StatusAndHeaders(status, list(headers.items()), protocol="HTTP/1.1")
            writer.write_record(writer.create_warc_record(url, "response", io.BytesIO(body), http_headers=response))
        for name in logs:
            payload = io.BytesIO(b"--warc-file crawl http://example.org/a and more words of a log.")
            url = f"metadata://gnu.org/software/wget/warc/{name}"
            writer.write_record(writer.create_warc_record(url, "resource", payload, warc_content_type="text/plain"))


def read_cleaned(directory):
    """Returns the counters and the pages, sorted by URL, that `t5x_like clean` has written."""
    pages = []
    for path in directory.rglob("*.jsonl.zst"):
        with zstandard.open(path, "rt", encoding="utf-8") as file:
            pages += map(json.loads, file)
    counters = json.loads((directory / "counters.json").read_text())["counters"]
    return counters, sorted(pages, key=lambda page: page["url"])
