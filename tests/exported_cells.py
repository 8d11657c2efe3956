"""The cells of the matrix of exports: what each kind of head trains on, and how its records are predicted here."""

import csv
import json
import re
import shlex

import exported_families
from exported_families import WORDS, sentences

from t5x_like import cli
from t5x_like.data import task_arguments

STEPS = 3
# With which the outputs of a new head differ from text to text after three steps.
HEAD_RATE = 0.05
_RATES = {
    **dict.fromkeys((("distilbert", "pairs"), ("bart", "scores")), 0.3),  # whose outputs hardly change
    # Which then generate texts of learned pieces; random bytes are not UTF-8.
    **{(family, "continued"): 0.3 for family in ("llama", "mistral", "gemma2", "gemma3")},
}
TASKS = ("exported_pairs", "exported_scores", "exported_texts")
LONG = " ".join(f"{word} and the" for word in WORDS * 3)
ENCODERS = (
    *("bert", "roberta", "distilbert", "electra", "mobilebert"),
    *("albert", "bigbird", "xlnet", "deberta", "deberta_v2", "longformer", "modernbert"),
)
ENCODER_DECODERS, DECODERS = ("t5_1_0", "t5_1_1", "bart"), ("gpt2", "llama", "mistral", "qwen3", "gemma2", "gemma3")
KINDS = {
    "pairs": {"recipe": "finetune_classification", "task": "exported_pairs", "lengths": {"inputs": 24}},
    "scores": {"recipe": "finetune_regression", "task": "exported_scores", "lengths": {"inputs": 24}},
    "tags": {"recipe": "finetune_tagging", "task": "conll2003_tagging", "lengths": {"inputs": 24}},
    "spans": {
        "recipe": "finetune_span_extraction",
        "task": "squad_v1_spans",
        "lengths": {"inputs": 64},
        "arguments": {"max_question_length": 24},
    },
    "choices": {
        "recipe": "finetune_multiple_choice",
        "task": "swag_multiple_choice",
        "lengths": {"inputs": 24},
        "settings": ["NUM_CHOICES=4"],
    },
    "generated": {"recipe": "finetune", "task": "exported_texts", "lengths": {"inputs": 24, "targets": 6}},
    "continued": {"recipe": "finetune", "task": "exported_texts", "lengths": {"inputs": 24, "targets": 6}},
    "masked": {
        "recipe": "roberta",
        "task": "text_files_masked_lm",
        "lengths": {"inputs": 64, "targets": 9},
        "settings": ["WARMUP_STEPS=1"],
    },
}
# Family -> beginning of the names of its classes.
_PREFIXES = {
    **{
        "bert": "Bert",
        "roberta": "Roberta",
        "distilbert": "DistilBert",
        "electra": "Electra",
        "mobilebert": "MobileBert",
    },
    **{"albert": "Albert", "bigbird": "BigBird", "xlnet": "XLNet", "deberta": "Deberta", "deberta_v2": "DebertaV2"},
    **{"longformer": "Longformer", "t5_1_0": "T5", "t5_1_1": "T5", "bart": "Bart"},
    **{"gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3", "gemma2": "Gemma2"},
    **{"gemma3": "Gemma3", "modernbert": "ModernBert", "t5gemma": "T5Gemma"},
}
_SUFFIXES = {
    **{"pairs": "ForSequenceClassification", "scores": "ForSequenceClassification", "tags": "ForTokenClassification"},
    **{"spans": "ForQuestionAnswering", "choices": "ForMultipleChoice", "masked": "ForMaskedLM"},
    **{"generated": "ForConditionalGeneration", "continued": "ForCausalLM"},
}
_CLASSES = {("xlnet", "spans"): "XLNetForQuestionAnsweringSimple", ("gpt2", "continued"): "GPT2LMHeadModel"}
_CLASSES |= dict.fromkeys((("gemma3", "pairs"), ("gemma3", "scores")), "Gemma3TextForSequenceClassification")
# Cells that no class of transformers has, or whose class computes something else (docs/exports.md).
_MISSING = {("deberta", "choices"), ("xlnet", "masked")}
# Cells of decoders without a class, which classes of other decoders have.
_NO_CLASS = {("gemma2", "spans"), ("gemma3", "tags"), ("gemma3", "spans")}
_KINDS_OF = {
    **dict.fromkeys(ENCODERS, ("masked", "pairs", "scores", "tags", "spans", "choices")),
    **dict.fromkeys(ENCODER_DECODERS, ("generated", "pairs", "scores", "spans")),
    **dict.fromkeys(DECODERS, ("continued", "pairs", "scores", "tags", "spans")),
    "t5gemma": ("generated",),
}
# Family and kind -> class of transformers.
CELLS = {
    (name, kind): _CLASSES.get((name, kind), _PREFIXES[name] + _SUFFIXES[kind])
    for name, kinds in _KINDS_OF.items()
    for kind in kinds
    if (name, kind) not in _MISSING | _NO_CLASS
}
_SHOWN = {
    "masked": "masked tokens",
    "pairs": "labels of pairs of texts",
    "scores": "scores of texts",
    "tags": "tags of words",
    "spans": "answers in a text",
    "choices": "choices",
    "generated": "generated texts",
    "continued": "continued texts",
}


def table():
    """Returns the table of the page: family and class -> what is compared."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, kinds in _KINDS_OF.items():
        for kind in kinds:
            if (name, kind) not in _MISSING:
                shown = f"`{CELLS[name, kind]}`" if (name, kind) in CELLS else "no such class"
                rows.setdefault((name, shown), []).append(_SHOWN[kind])
    lines = [f"| {name} | {shown} | {', '.join(kinds)} |" for (name, shown), kinds in rows.items()]
    return "\n".join(["| family | class of transformers | compared |", "|---|---|---|", *lines])


DATA_DIRS = {"tags": "conll", "spans": "squad", "choices": "swag"}
# Settings of a family that the recipes of its kind do not have.
_GLOBAL = "GLOBAL_TOKENS=@t5x_like.models.longformer"
FAMILY_SETTINGS = {
    **dict.fromkeys((("longformer", "pairs"), ("longformer", "scores")), [f"{_GLOBAL}.FirstToken()"]),
    ("longformer", "spans"): [f"{_GLOBAL}.BeforeSeparator()"],
    ("longformer", "choices"): [f"{_GLOBAL}.AfterSeparators()"],
}


def write_data(root):
    """Writes the files of the tasks, and registers the tasks of own tables."""
    from data_tasks.downstream.own_tables import add_classification_task, add_text_to_text_task

    texts = sentences(24, seed=1)
    tables = {
        "pairs": [{"first": a, "second": b, "label": len(a) % 2} for a, b in zip(texts, texts[1:], strict=False)],
        "scores": [{"text": text, "score": len(text) / 10} for text in texts],
        "texts": [{"source": text, "target": text.split()[1]} for text in texts],
    }
    for name, rows in tables.items():
        with (root / f"{name}.csv").open("w") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    files = {name: {split: str(root / f"{name}.csv") for split in ("train", "validation")} for name in tables}
    add_classification_task(
        "exported_pairs", files["pairs"], texts=["first", "second"], label="label", labels=["no", "yes"]
    )
    add_classification_task("exported_scores", files["scores"], texts=["text"], label="score", labels=None)
    add_text_to_text_task("exported_texts", files["texts"], inputs="source", targets="target")
    (root / "texts.txt").write_text("\n\n".join("\n".join(texts[n : n + 4]) for n in range(0, 24, 4)))
    for directory in DATA_DIRS.values():
        (root / directory).mkdir()
    words = [[word.strip(".") for word in text.split()] for text in texts]
    for split in ("train", "validation"):
        rows = [{"tokens": each, "ner": ["B-LOC" if n == 1 else "O" for n in range(len(each))]} for each in words]
        (root / "conll" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        questions = [
            {
                "id": str(number),
                "question": "What was near?",
                "context": text,
                "answers": {"text": [text.split()[1]], "answer_start": [4]},
            }
            for number, text in enumerate(texts)
        ]
        (root / "squad" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, questions)))
        choices = [
            {
                "sent1": text,
                "sent2": "The",
                **{f"ending{n}": f"{word} was." for n, word in enumerate(WORDS[:4])},
                "label": number % 4,
            }
            for number, text in enumerate(texts)
        ]
        (root / "swag" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, choices)))


def records_of(kind, is_decoder=False):
    """Returns the records of a kind: short, long, empty and with characters that the vocabulary lacks.

    The pipeline of transformers leaves out an empty second text. A decoder with a head reads the last token, which an
    empty text does not have.
    """
    a, b, *_ = sentences(4, seed=2)
    if kind == "pairs":
        pairs = [(a, b), (a, LONG), (LONG, b), (LONG, LONG), ("", b), ("Ünïcode é", "a  b\tc")]
        return [{"first": first, "second": second} for first, second in pairs]
    if kind == "scores":
        return [{"text": text} for text in (a, b, LONG, *([] if is_decoder else [""]), "Ünïcode é")]
    if kind == "tags":
        return [{"words": text.split()} for text in (a, LONG, "river", "Ünïcode é.")]
    if kind == "spans":
        return [{"question": "What was near?", "context": text} for text in (a, b, "river stone", "the é river")]
    if kind == "choices":
        endings = {f"ending{number}": f"{word} was." for number, word in enumerate(WORDS[2:6])}
        return [{"sent1": first, "sent2": "The", **endings} for first in (a, LONG, "")]
    if kind == "masked":
        return [{"text": text} for text in ("The ___ and the river", "___ near the stones.", a.replace("and", "___"))]
    return [{"inputs": text} for text in (a, b, LONG, "", "river")]


def run_words(words):
    """Runs a command in this process.

    Raises:
      RuntimeError: it fails.
    """
    task_arguments.reset()
    if cli.main(words):
        raise RuntimeError(" ".join(words))


def train(name, kind, root):
    """Trains a run of a family, and returns its directory."""
    spec, run = KINDS[kind], root / "runs" / f"{name}-{kind}"
    generates = kind == "generated"
    start = root / "starts" / (f"{name}-generating" if generates else name)
    if not start.exists():
        exported_families.write(name, start, generates=generates)
    words = ["train", f"--gin_file=runs/{spec['recipe']}.gin", f"--gin.HF_PATH={start}", f"--gin.MODEL_DIR={run}"]
    words += [f"--gin.MIXTURE_OR_TASK_NAME={spec['task']}", f"--gin.TASK_FEATURE_LENGTHS={spec['lengths']}"]
    if kind in DATA_DIRS:
        arguments = {"data_dir": str(root / DATA_DIRS[kind]), **spec.get("arguments", {})}
        words.append(f"--gin.TASK_ARGUMENTS={arguments}")
    if kind == "masked":
        words += [f"--gin.DATA_FILES={root / 'texts.txt'}", "--gin.PACK=False"]
    words += [f"--gin.{each}" for each in (*spec.get("settings", ()), *FAMILY_SETTINGS.get((name, kind), ()))]
    rate = _RATES.get((name, kind), None if "targets" in spec["lengths"] else HEAD_RATE)
    words += [] if rate is None else [f"--gin.LEARNING_RATE={rate}"]
    words += [f"--gin.TRAIN_STEPS={STEPS}", "--gin.BATCH_SIZE=8", "--gin.EVAL_DATA=None"]
    run_words(words)
    return run


def predict(kind, root, path, records):
    """Predicts records by a run, or by an exported directory with the command of its card."""
    if kind == "masked":
        return masked(path, records)
    is_run = (path / "config.gin").exists()
    words = [f"--gin.MODEL_DIR={path}"] if is_run else card_words(path)
    file = root / f"{kind}.jsonl"
    columns = {"words": "tokens"}
    rows = [{columns.get(key, key): value for key, value in record.items()} for record in records]
    if kind == "spans":
        rows = [{"id": str(number), **row} for number, row in enumerate(rows)]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    output = root / "out.jsonl"
    output.unlink(missing_ok=True)
    run_words(["infer", *words, f"--input={file}", f"--output={output}"])
    return [found(kind, json.loads(line)) for line in output.read_text().splitlines()]


def found(kind, fields):
    """Returns the prediction of a record in the form of `read_exports`."""
    if kind == "pairs":
        return fields["probabilities"]
    if kind == "choices":
        return [*fields["probabilities"].values()]
    if kind == "scores":
        return {"LABEL_0": fields["prediction"]}
    if kind == "spans":
        return {"text": fields["prediction"], "score": fields["score"]}
    # transformers leaves sentinels out of a text.
    sentinels = "^(<extra_id_[0-9]+> ?)+| ?<extra_id_[0-9]+>"
    return re.sub(sentinels, "", fields["prediction"]) if kind == "generated" else fields["prediction"]


def card_words(directory):
    """Returns the words of the command of `infer` in the card of an export, without its files."""
    (line,) = [line for line in (directory / "README.md").read_text().splitlines() if "t5x_like infer" in line]
    words = [word for word in shlex.split(line)[2:] if not re.match("--(input|output)=", word)]
    return [word.replace("HF_PATH=.", f"HF_PATH={directory}") for word in words]


def masked(path, records):
    """Returns the log-probabilities of all tokens in the blanks of the records, by a run or an exported directory."""
    import numpy as np

    from t5x_like.analysis import blanks
    from t5x_like.analysis.analyzed_model import AnalyzedModel
    from t5x_like.analysis.blanks import Blank
    from t5x_like.loading import open_model

    analyzed = AnalyzedModel(open_model(str(path)))
    rows = []
    for record in records:
        before, _, after = record["text"].partition("___")
        ids = list(analyzed.vocabulary.encode(before.rstrip())) if before else []
        rows.append(Blank([*ids, 0, *analyzed.encode_continuation(after)], len(ids), len(ids) + 1, "record"))
    reader = blanks.reader_of(analyzed)
    return [np.asarray(each).tolist() for each in blanks.log_probabilities(analyzed, reader, rows, what="records")]
