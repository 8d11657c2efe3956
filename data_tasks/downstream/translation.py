"""Translation as text to text (Raffel et al. 2020): `translate English to German: …` -> the translation.

    TASK_ARGUMENTS = {"data_dir": "multi30k"}

| task | data |
|---|---|
| `wmt14_ende_v003`, `wmt14_enfr_v003`, `wmt15_enfr_v003`, `wmt16_enro_v003` | WMT from TFDS, as in the t5 package |
| `wmt19_ende_v003`, `wmt_t2t_ende_v003` | the same; `wmt_t2t` has the training data of Tensor2Tensor |
| `parallel_text` | files of any two languages; the arguments `source_language` and `target_language` select them |

With `data_dir`, all of them read pairs of files such as `train.en` and `train.de`, also with .gz, or files named after
the splits (`train.jsonl`) with a column per language.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from data_tasks.corpora.columns import Text
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, Layout
from data_tasks.corpora.parallel_files import ParallelFiles
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.generation import bleu
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

LANGUAGES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek"},
    **{"en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French"},
    **{"gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian"},
    **{"is": "Icelandic", "it": "Italian", "ja": "Japanese", "kk": "Kazakh", "ko": "Korean", "lt": "Lithuanian"},
    **{"lv": "Latvian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian"},
    **{"ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "th": "Thai", "tr": "Turkish"},
    **{"uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese"},
}
"""The English names of languages by their codes of ISO 639-1, as the prefix of T5 has them."""

NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "test_2016_flickr", "newstest2014", "newstest2016"),
}
"""The names that the files of a split may have."""

Pair = tuple[str, str]
"""The codes of the source language and of the target language."""


class _Files(Mapping[str, Sequence[tuple[str, Layout]]]):
    """The files of each split for the current pair of languages; see `data_dir.Files`."""

    def __init__(self, languages: Callable[[], Pair]):
        self._languages = languages

    def __getitem__(self, split: str) -> Sequence[tuple[str, Layout]]:
        languages = self._languages()
        pairs: list[tuple[str, Layout]] = [(name, ParallelFiles(languages)) for name in NAMES[split]]
        return [*pairs, (f"{split}.jsonl", Table.of({language: Text() for language in languages}))]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def _language(code: str) -> str:
    if code not in LANGUAGES:
        raise UserError(
            f"TASK_ARGUMENTS: {code!r} is not the code of a known language. Give one of {', '.join(LANGUAGES)}."
        )
    return LANGUAGES[code]


def _add(
    name: str, languages: Callable[[], Pair], arguments: task_arguments.Arguments, tfds: str | None = None
) -> None:
    def translate(ds):
        """Makes `inputs` and `targets` of a pair of texts."""
        first, second = languages()
        prefix = f"translate {_language(first)} to {_language(second)}: "

        def to_text(example):
            return {"inputs": tf.strings.join([prefix, example[first]]), "targets": example[second]}

        return ds.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)

    source = DataDirSource(name, arguments, _Files(languages), tfds=tfds, target_texts=lambda: languages()[1:])
    text_to_text.add(name, source, arguments, prepare=[translate], metric_fns=[bleu])


def _add_wmt(name: str, pair: Pair, tfds: str) -> None:
    arguments = task_arguments.declare(
        name,
        # A directory with pairs of files. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )
    _add(name, lambda: pair, arguments, tfds)


def _add_parallel_text(name: str) -> None:
    arguments = task_arguments.declare(
        name,
        # A directory with pairs of files. Required.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
        # The code of the language to translate from, which is the suffix of its files.
        source_language="en",
        # The code of the language to translate to.
        target_language="de",
    )
    _add(name, lambda: (arguments["source_language"], arguments["target_language"]), arguments)


_add_wmt("wmt14_ende_v003", ("en", "de"), "wmt14_translate/de-en:1.0.0")
_add_wmt("wmt14_enfr_v003", ("en", "fr"), "wmt14_translate/fr-en:1.0.0")
_add_wmt("wmt15_enfr_v003", ("en", "fr"), "wmt15_translate/fr-en:1.0.0")
_add_wmt("wmt16_enro_v003", ("en", "ro"), "wmt16_translate/ro-en:1.0.0")
_add_wmt("wmt19_ende_v003", ("en", "de"), "wmt19_translate/de-en:1.0.0")
_add_wmt("wmt_t2t_ende_v003", ("en", "de"), "wmt_t2t_translate/de-en:1.0.0")
_add_parallel_text("parallel_text")
