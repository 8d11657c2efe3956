"""Reads exported directories with transformers 4 or 5 alone: text in; labels, scores, tags, spans, choices or text out.

Nothing but texts is given: ids, lengths and templates come from the exported tokenizer and configuration. As a script,
`python read_exports.py CELLS.json RESULTS.json` reads a list of `[name, directory, kind, records]`.
"""

import contextlib
import json
import math
import sys
import traceback

BATCH = 3
MAX_ANSWER = 30


def _load(cls, directory):
    """Returns a model all of whose parameters are in the directory."""
    model, info = cls.from_pretrained(directory, output_loading_info=True)
    wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if wrong:
        raise ValueError(f"{type(model).__name__}: {wrong}")
    return model.requires_grad_(False).eval()


def _class(directory):
    """Returns the class that config.json names."""
    import transformers

    (name,) = transformers.AutoConfig.from_pretrained(directory).architectures
    return getattr(transformers, name)


def _pipeline(task, directory):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return transformers.pipeline(task, model=_load(_class(directory), directory), tokenizer=tokenizer, device="cpu")


def _texts(record, names):
    given = [record[name] for name in names if name in record]
    return {"text": given[0], **({"text_pair": given[1]} if len(given) > 1 else {})}


def _labels(directory, records):
    pipeline = _pipeline("text-classification", directory)
    rows = [_texts(record, ("first", "second", "text")) for record in records]
    found = pipeline(rows, top_k=None, truncation=True, padding=True, batch_size=BATCH)
    return [{each["label"]: each["score"] for each in row} for row in found]


def _tags(directory, records):
    import transformers

    model, tokenizer = _load(_class(directory), directory), transformers.AutoTokenizer.from_pretrained(directory)
    # A word of byte-level BPE has the space before it, which Qwen's tokenizer does not add.
    space = " " * type(tokenizer).__name__.startswith("Qwen")
    if not space:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, add_prefix_space=True)
    found = []
    for start in range(0, len(records), BATCH):
        words = [[space + word for word in record["words"]] for record in records[start : start + BATCH]]
        rows = tokenizer(words, is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
        best = model(**rows).logits.argmax(-1)
        for number, of_row in enumerate(words):
            tags = [None] * len(of_row)
            for position, word in reversed(list(enumerate(rows.word_ids(number)))):
                if word is not None:
                    tags[word] = model.config.id2label[int(best[number, position])]
            found.append(tags)
    return found


def _spans(directory, records):
    import transformers

    model, tokenizer = _load(_class(directory), directory), transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for record in records:
        rows = tokenizer(
            record["question"],
            record["context"],
            truncation="only_second",
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets, of_text = rows.pop("offset_mapping")[0].tolist(), rows.sequence_ids(0)
        outputs = model(**rows)
        first, last = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        inside = [position for position, sequence in enumerate(of_text) if sequence == 1]
        spans = [(first[i] + last[j], i, j) for i in inside for j in inside if i <= j < i + MAX_ANSWER]
        score, i, j = max(spans)
        # A token of byte-level BPE has the space before its word, which `infer` leaves out.
        found.append({"text": record["context"][offsets[i][0] : offsets[j][1]].strip(), "score": score})
    return found


def _choices(directory, records):
    import torch
    import transformers

    model, tokenizer = _load(_class(directory), directory), transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for record in records:
        endings = [f"{record['sent2']} {record[f'ending{number}']}".strip() for number in range(4)]
        rows = tokenizer([record["sent1"]] * 4, endings, truncation=True, padding=True, return_tensors="pt")
        logits = model(**{name: rows[name][None] for name in rows}).logits
        found.append(torch.softmax(logits[0], -1).tolist())
    return found


def _generated(directory, records, is_decoder=False):
    import transformers

    # The pipeline for decoders samples 256 tokens, whatever generation_config.json says.
    model, tokenizer = _load(_class(directory), directory), transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for start in range(0, len(records), BATCH):
        texts = [record["inputs"] for record in records[start : start + BATCH]]
        rows = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        outputs = model.generate(**rows)
        outputs = outputs[:, rows["input_ids"].shape[1] :] if is_decoder else outputs
        found += tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return found


def _continued(directory, records):
    return _generated(directory, records, is_decoder=True)


def _masked(directory, records):
    import torch

    pipeline = _pipeline("fill-mask", directory)
    tokenizer, found = pipeline.tokenizer, []
    for record in records:
        text = record["text"].replace("___", tokenizer.mask_token)
        rows = tokenizer(text, return_tensors="pt", truncation=True)
        logits = pipeline.model(**rows).logits[0]
        (position,) = (rows["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0].tolist()
        found.append(torch.log_softmax(logits[position], -1).tolist())
        best = pipeline(text)[0]
        assert best["token"] == int(logits[position].argmax()), best
    return found


READERS = {
    "pairs": _labels,
    "scores": _labels,
    "tags": _tags,
    "spans": _spans,
    "choices": _choices,
    "generated": _generated,
    "continued": _continued,
    "masked": _masked,
}


def read(directory, kind, records):
    """Returns what transformers predicts for the records of a kind."""
    return READERS[kind](directory, records)


def equal(kind, found, expected, tolerance=2e-5):
    """Returns whether two results agree: names and texts exactly, numbers up to a tolerance relative to the largest."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            equal(kind, found[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, list):
        if expected and all(isinstance(each, float) for each in expected):
            size = max(map(abs, expected))
            return len(found) == len(expected) and all(
                math.isclose(x, y, rel_tol=0, abs_tol=tolerance * size) for x, y in zip(found, expected, strict=True)
            )
        return len(found) == len(expected) and all(
            equal(kind, one, other, tolerance) for one, other in zip(found, expected, strict=True)
        )
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return found == expected


def main(cells, results):
    """Reads all cells, and writes name -> result, or name -> the error as text."""
    import transformers

    found = {"version": transformers.__version__}
    with open(cells) as file:
        given = json.load(file)
    for name, directory, kind, records in given:
        try:
            found[name] = read(directory, kind, records)
        except Exception:
            found[name] = traceback.format_exc()[-1500:]
    with contextlib.closing(open(results, "w")) as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
