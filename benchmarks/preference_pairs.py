"""Makes completions of which one is better by construction: the end of a sentence, and a worse one.

python benchmarks/preference_pairs.py 'books/*.txt' pairs

The prompt is the first half of a sentence, and the chosen completion its other half. The rejected one has as many
words: those of the chosen one with two neighbours swapped (`order`), or the end of another sentence (`topic`). For
fine-tuning, `prompts` has the prompts and the chosen completions alone. Files: `KIND.train.jsonl` and
`KIND.validation.jsonl`.
"""

import argparse
import glob
import json
import pathlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence

WORDS = range(16, 31)  # words of a sentence


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="text files")
    parser.add_argument("directory", type=pathlib.Path, help="directory of the pairs")
    parser.add_argument("--train", type=int, default=4000, help="number of pairs to train on (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=512, help="number of other pairs (default: %(default)s)")
    arguments = parser.parse_args()
    if min(arguments.train, arguments.validation) < 1:
        parser.error(f"--train={arguments.train} --validation={arguments.validation}: not positive")
    found = [each for file in sorted(glob.glob(arguments.pattern)) for each in sentences(file)]
    rng, needed = random.Random(0), arguments.train + arguments.validation
    if len(found) < needed:
        parser.error(f"{arguments.pattern}: {len(found)} sentences of {WORDS[0]} to {WORDS[-1]} words, not {needed}")
    pairs = list(make_pairs(rng.sample(found, needed), rng))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for split, part in (("train", pairs[: arguments.train]), ("validation", pairs[arguments.train :])):
        for kind in part[0]:
            lines = "".join(json.dumps(pair[kind], ensure_ascii=False) + "\n" for pair in part)
            (arguments.directory / f"{kind}.{split}.jsonl").write_text(lines, encoding="utf-8")


def sentences(file: str) -> Iterator[list[str]]:
    """Yields the words of the sentences of a text whose number is in `WORDS`."""
    text = " ".join(pathlib.Path(file).read_text(encoding="utf-8").split())
    for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", text):
        if len(words := sentence.split()) in WORDS:
            yield words


def make_pairs(found: Sequence[list[str]], rng: random.Random) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """Yields kind -> record, for each sentence."""
    for place, words in enumerate(found):
        half = len(words) // 2
        end, other = words[half:], found[place - 1]
        prompt, chosen = " ".join(words[:half]), _text(end)
        first = rng.choice([i for i in range(len(end) - 2) if end[i] != end[i + 1]])
        swapped = [*end[:first], end[first + 1], end[first], *end[first + 2 :]]
        rejected = {"order": _text(swapped), "topic": _text(other[-len(end) :])}
        yield {
            "prompts": {"prompt": prompt, "completion": chosen},
            **{kind: {"prompt": prompt, "chosen": chosen, "rejected": text} for kind, text in rejected.items()},
        }


def _text(words: Sequence[str]) -> str:
    return "".join(f" {word}" for word in words)


if __name__ == "__main__":
    main()
