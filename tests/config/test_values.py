"""Values on the command line."""

import pytest

from t5x_like import config
from t5x_like.config import values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("python_docs_span_corruption", "python_docs_span_corruption"),
        ("gs://bucket/run-1", "gs://bucket/run-1"),
        ("/tmp/some where/x", "/tmp/some where/x"),
        ("~/runs/1", "~/runs/1"),
        ("2024-01-01", "2024-01-01"),
        ("t5.1.1", "t5.1.1"),
        ("'quoted'", "quoted"),
        ('"2024"', "2024"),
        ("128", 128),
        ("-1", -1),
        ("1e-3", 1e-3),
        ("None", None),
        ("True", True),
        ("{'inputs': 512, 'targets': 114}", {"inputs": 512, "targets": 114}),
        ("[1, 'two', (3,)]", [1, "two", (3,)]),
        ("%OTHER", values.Macro("OTHER")),
        ("@scope/a.b()", values.Reference("a.b", "scope", True)),
    ],
)
def test_string_needs_no_quotes_on_the_command_line(text, value):
    assert values.from_command_line("NAME", text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true", "write True"),
        ("FALSE", "write False"),
        ("null", "write None"),
        ("none", "write None"),
        ("", "missing value"),
        ("{'inputs': 512", "is not a gin value"),
        ("'open", "is not a gin value"),
        ("@", "is not a gin value"),
    ],
)
def test_invalid_value_raises(text, message):
    with pytest.raises(config.ConfigError, match=message):
        values.from_command_line("NAME", text)
