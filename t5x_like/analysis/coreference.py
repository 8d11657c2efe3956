"""Documents with coreference: a JSON object per line with `words` and `clusters`.

    {"words": ["Ann", "saw", "her", "dog"], "clusters": [[[0, 1], [2, 3]]]}

A cluster is a list of mentions of the same entity. A mention is `[start, stop]` or `[start, stop, head]`: indices of
words from 0, where `stop` is after the last word, and of the head, which is the last word by default.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like.analysis.files import json_lines
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
      words: Its words.
      clusters: The index of the head of each mention of each entity, in ascending order.
    """

    words: Sequence[str]
    clusters: Sequence[Sequence[int]]

    def antecedents(self) -> Iterator[tuple[int, list[int]]]:
        """Yields the head of each mention that is not the first, and the heads of the mentions before it."""
        for cluster in self.clusters:
            for index in range(1, len(cluster)):
                yield cluster[index], list(cluster[:index])


def read(setting: str, path: str) -> list[Document]:
    """Reads the documents of a .jsonl file.

    Raises:
      UserError: The file is not found, a line is invalid, or no mention has an antecedent.
    """
    found = []
    for where, value in json_lines(setting, path):
        words, clusters = value.get("words"), value.get("clusters")
        if not (isinstance(words, list) and words and all(isinstance(word, str) and word for word in words)):
            raise UserError(f"{where}: 'words' is not a list of words. Correct the line.")
        if not (isinstance(clusters, list) and all(isinstance(cluster, list) for cluster in clusters)):
            raise UserError(f"{where}: 'clusters' is not a list of lists of mentions. Correct the line.")
        heads = [sorted({_head(where, mention, len(words)) for mention in cluster}) for cluster in clusters]
        found.append(Document(words, heads))
    if not any(True for document in found for _ in document.antecedents()):
        raise UserError(f"{setting}={path}: no mention has an antecedent. Give clusters of two or more mentions.")
    return found


def _head(where: str, mention: Any, num_words: int) -> int:
    valid = isinstance(mention, list) and len(mention) in (2, 3) and all(type(index) is int for index in mention)
    if valid:
        start, stop, head = (*mention, mention[1] - 1)[:3]
        if 0 <= start <= head < stop <= num_words:
            return head
    raise UserError(
        f"{where}: {mention!r:.60} is not a mention: [start, stop] or [start, stop, head] among {num_words} words."
    )


def baselines(documents: Sequence[Document]) -> dict[str, float]:
    """Returns the accuracy of two rules that know the mentions, from 0 to 1.

    `nearest mention` chooses the last mention of any entity before the mention. `nearest mention with the same word`
    chooses the last one whose head is the same word, or else the last one.
    """
    nearest = same = total = 0
    for document in documents:
        mentions = sorted({head for cluster in document.clusters for head in cluster})
        for head, antecedents in document.antecedents():
            before = [each for each in mentions if each < head]
            equal = [each for each in before if document.words[each].lower() == document.words[head].lower()]
            nearest += before[-1] in antecedents
            same += (equal or before)[-1] in antecedents
            total += 1
    return {"nearest mention": nearest / total, "nearest mention with the same word": same / total}
