"""The commands of the pages about distillation, run in the order of the text with small models and two steps.

Models and data have the names that the pages use. `SMALLER` has the settings that make a command small; all other words
come from the pages.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import page_commands
import pytest
import small_models

from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.metrics import read_metrics

# The last test reads what the commands wrote, so the whole file has the marker of that test.
pytestmark = [pytest.mark.full, pytest.mark.parity]

# The model of a Hugging Face directory has no macros; a scanned stack is compiled once for all of its layers.
SCANNED = """
from __gin__ import dynamic_registration
from t5x_like.models import bert

bert.BertConfig.scan_layers = True
"""
PAGES = ("distillation", "distillation_data", "teacher_logits")
# Only the part of a page after this heading is run; the text before it explains the parts of a command.
STARTS = {"distillation": "## Examples"}
LABELS = ("negative", "positive")
INPUTS = ["one two", "two three", "three", "four"]
STEPS = 2
SIZES = small_models.SIZES.items()
BERT = [
    *(f"BertConfig.{name}={size}" for name, size in SIZES),
    "BertConfig.max_length=64",
    "BertConfig.scan_layers=True",
]
GPT2 = [*(f"GPTConfig.{name}={size}" for name, size in SIZES), "GPTConfig.max_length=64", "GPTConfig.scan_layers=True"]
T5 = [*(f"T5Config.{name}={size}" for name, size in SIZES), "T5Config.encoder_layers=1", "T5Config.decoder_layers=1"]
LLAMA = ["LlamaConfig.num_layers=1", "LlamaConfig.num_kv_heads=2", "LlamaConfig.max_length=64", "WARMUP_STEPS=1"]
# Text in a command -> settings of a small one. BERT and GPT-2 keep their numbers of layers, to which layer maps refer.
SMALLER = {
    r"^(train|distill) ": ["BATCH_SIZE=4", "LOG_PERIOD=1"],
    r"^(train|distill) (?!.*TRAIN_EPOCHS)": [f"TRAIN_STEPS={STEPS}"],
    r"^(train|distill) .*runs/bert.gin": ["WARMUP_STEPS=1", "EVAL_STEPS=1"],
    r"^(train|distill) .*models/bert": BERT,
    r"^train .*HF_PATH=bert": ["--gin_file=scanned.gin"],
    r"^(train|distill) .*models/bert.*uncased": [f"BertConfig.vocab_size={len(small_models.PIECES)}"],
    r"^(train|distill) .*python_docs": ["BertConfig.vocab_size=1024", "EVAL_DATA=None"],
    r"students/t5_small": [*T5, f"T5Config.vocab_size={small_models.T5_IDS}"],
    r"students/distilgpt2": [
        *GPT2,
        f"GPTConfig.vocab_size={small_models.GPT2_IDS}",
        f"BOS_ID={small_models.BOS_ID}",
    ],
    r"^(train|distill|cache) .*runs/bert.gin": ["TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 5}"],
    r"_classification": ["TASK_FEATURE_LENGTHS={'inputs': 16}"],
    r"text_table": ["TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}", "TASK_METRICS=False"],
    r"_causal_lm": ["TASK_FEATURE_LENGTHS={'targets': 16}", "EVAL_STEPS=1"],
    r"^infer .*(t5|teacher|gpt2)": ["TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}"],
    r"models/smollm2": [*(f"LlamaConfig.{name}={size}" for name, size in SIZES), *LLAMA],
    r"^vocabulary ": ["SIZE=280"],
    r"^import_logits |distill .*served": ["TASK_FEATURE_LENGTHS={'targets': 16}"],
    r"models/gpt2/small": [*GPT2, "GPTConfig.num_layers=1", "GPTConfig.vocab_size=320", "WARMUP_STEPS=1"],
    r"^cache ": ["NUM_SHARDS=1", "PROCESSES=1"],
    r"HF_PATH=distilgpt2 ": [f"BOS_ID={small_models.BOS_ID}"],
    r"text_table .*SAMPLE_LENGTH": ["SAMPLE_LENGTH=4"],
    r"SAMPLE_LENGTH": ["SAMPLE_EOS_ID=1"],
    r"TEACHER_LENGTHS": ["TEACHER_LENGTHS={'inputs': 16, 'targets': 12}"],
}


def commands(page):
    """Returns the commands of a page, without those that differ from an earlier one in numbers alone."""
    found = {}
    for command in page_commands.commands(page, STARTS.get(page, "")):
        found.setdefault(re.sub(r"\d+", "N", command), command)
    return list(found.values())


def smaller(command):
    """Returns the arguments of a command, with the settings of `SMALLER`."""
    text = command.removeprefix("t5x_like ")
    settings = [setting for pattern, added in SMALLER.items() if re.search(pattern, text) for setting in added]
    words = [setting if setting.startswith("--") else f"--gin.{setting}" for setting in settings]
    return [*shlex.split(text), *words]


def rows(**columns):
    return "".join(
        json.dumps(dict(zip(columns, values, strict=True))) + "\n" for values in zip(*columns.values(), strict=True)
    )


def tsv(header, *lines):
    return "\n".join(["\t".join(header), *("\t".join(line) for line in lines)]) + "\n"


def write_data(directory):
    """Writes the files that the commands name: GLUE tasks, texts, records, and word vectors; and `scanned.gin`."""
    (directory / "scanned.gin").write_text(SCANNED)
    labelled = [("a fine film", "1"), ("a dull film", "0")] * 4
    for folder, split in (("glue", "train"), ("glue", "dev"), ("transfer", "dev")):
        name = directory / folder / ("SST-2" if folder == "glue" else "") / f"{split}.tsv"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(tsv(("sentence", "label"), *labelled))
    (directory / "transfer" / "train.jsonl").write_text(rows(sentence=["a fine plot", "a dull cast"] * 4))
    (directory / "glue" / "MRPC").mkdir()
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    (directory / "glue" / "MRPC" / "train.tsv").write_text(tsv(header, ("1", "7", "8", "a fine film", "fine film")))
    (directory / "augmented" / "SST-2").mkdir(parents=True)
    (directory / "augmented" / "MRPC").mkdir()
    (directory / "glove.6B.300d.txt").write_text("film 1 0\nplot 0.9 0.1\nfine 0 1\ngood 0.1 0.9\n")
    inputs, targets = INPUTS, ["one", "two", "three", "four"]
    for name in ("labelled", "validation"):
        (directory / f"{name}.jsonl").write_text(rows(inputs=inputs, targets=targets))
    (directory / "articles.jsonl").write_text(rows(inputs=inputs))
    for name in ("articles", "prompts"):
        (directory / f"{name}.txt").write_text("\n".join(inputs) + "\n")
    (directory / "rows.jsonl").write_text(rows(sentence=["a fine film", "a dull film"]))
    (directory / "answers").mkdir()
    served = {"tokens": ["a", "b"], "top_logprobs": [{"a": -0.1, "b": -3.0}, {"b": -0.2, "c": -2.5}]}
    (directory / "answers" / "0.jsonl").write_text((json.dumps(served) + "\n") * 8)
    (directory / "text").mkdir()
    # 400 documents of eight sentences, or 57 of 64 lines; their hashes hold some of them out.
    lines = []
    for number in range(1600):
        lines += [f"a and a {number}.", f"b and b {number}." + "\n" * (number % 4 == 3)]
    (directory / "text" / "all.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns a directory with a Hugging Face directory for each name in the pages."""
    path = tmp_path_factory.mktemp("models")
    small_models.write_bert(path / "bert-base-uncased", num_layers=12, pretraining=True)
    small_models.write_bert(path / "bert-tiny")
    small_models.write_bert(path / "sst2", labels=LABELS)
    small_models.write_t5(path / "t5-base")
    small_models.write_t5(path / "t5-small")
    small_models.write_gpt2(path / "gpt2", num_layers=12)
    small_models.write_gpt2(path / "gpt2-medium")
    small_models.write_gpt2(path / "distilgpt2")
    small_models.write_gpt2(path / "served-model")
    small_models.write_llama(path / "TinyLlama-1.1B")
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory, models):
    """Returns a directory for each page, in which its commands run in order and read the files of earlier ones."""
    paths = {page: tmp_path_factory.mktemp(page) for page in PAGES}
    for path in paths.values():
        write_data(path)
        for model in models.iterdir():
            (path / model.name).symlink_to(model)
    runs = paths["distillation_data"] / "runs"
    runs.mkdir()
    (runs / "sst2").symlink_to(models / "sst2")
    convert(Source(str(models / "t5-base")), Target(str(runs / "teacher")))
    return paths


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page in PAGES for command in commands(page)],
    ids=page_commands.described,
)
def test_command_succeeds(page, command, directories, run_command, monkeypatch):
    monkeypatch.chdir(directories[page])
    arguments = smaller(command)
    code, output = run_command(arguments)
    assert code == 0, output
    if arguments[0] == "eval":
        assert "loss = " in output and "kl = " not in output
    if arguments[0] == "distill":
        run, teacher = (option(arguments, name) for name in ("MODEL_DIR", "TEACHER"))
        assert len([row for row in read_metrics(run) if row["split"] == "train"]) >= STEPS
        if page == "distillation":  # the later commands of a journey have no teacher
            shutil.rmtree(teacher) if not Path(teacher).is_symlink() else Path(teacher).unlink()


def option(arguments, name):
    (value,) = [word.partition("=")[2] for word in arguments if word.startswith(f"--gin.{name}=")]
    return value


def test_journeys_write_the_documented_files(directories):
    """Runs after the commands, in file order."""
    path = directories["distillation"]
    labels, texts = ([json.loads(line) for line in (path / name).open()] for name in ("labels.jsonl", "short.jsonl"))
    assert [row["prediction"] in LABELS for row in labels] == [True, True]
    assert [row["inputs"] for row in texts] == INPUTS and all("prediction" in row for row in texts)
    augmented = (directories["distillation_data"] / "augmented" / "SST-2" / "train.tsv").read_text().splitlines()
    assert augmented[0] == "sentence\tlabel" and len(augmented) > 1 + 2


def test_students_load_in_transformers(directories):
    import transformers

    path = directories["distillation"] / "exported"
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(path / "classifier")
    assert classifier.config.num_hidden_layers == 6
    assert classifier.config.id2label == dict(enumerate(LABELS))
    t5 = transformers.AutoModelForSeq2SeqLM.from_pretrained(path / "t5")
    assert t5.config.num_layers == 1 and t5.config.tie_word_embeddings
    assert transformers.AutoModelForCausalLM.from_pretrained(path / "gpt2").config.n_layer == 6
    for name, text in (("classifier", "a fine film"), ("t5", "one two"), ("gpt2", "one two")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path / name, use_fast=False)
        assert text in tokenizer.decode(tokenizer(text).input_ids)
