"""Every command in README, docs, launch/README.md and the headers of gin files has a valid configuration."""

import json
import re
import shlex
import sys
from pathlib import Path

import fsspec
import pytest

from t5x_like import cli, config, interop, stores
from t5x_like.cli import resolution
from t5x_like.cli.derivations import epochs
from t5x_like.config import description

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "launch" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GIN_FILES = sorted((ROOT / "gin_configs").rglob("*.gin"))
RUN = "--gin_file=models/t5_1_1/tiny.gin --gin_file=runs/pretrain.gin --gin.TRAIN_STEPS=1 --gin.MIXTURE_OR_TASK_NAME=a"
# Text before `t5x_like`: a launcher or environment variables.
BEFORE = r"(?:launch/\S+ .*? )?(?:[A-Z][A-Z0-9_]*=\S+ )*"
COMMAND = re.compile(rf"^ *{BEFORE}(t5x_like (?:{'|'.join(cli.COMMANDS)})\b.*)$")


def shown_in(path):
    """Returns the commands in indented and fenced blocks, without line continuations and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".gin":
        text = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#"))
    fenced = "\n".join(re.findall(r"^```(?:bash|sh|shell)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    indented = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in _joined(indented) if line.startswith("   ")] + _joined(fenced)
    found = [match[1] for line in lines if (match := COMMAND.match(line))]
    split = [shlex.split(command, comments=True)[1:] for command in found]
    return [[word for word in words if not word.startswith(">")] for words in split]  # > writes the output to a file


def _joined(text):
    return re.sub(r"\\\n\s*", " ", text).splitlines()


# Page, or folder of gin files -> the commands that it shows, each once.
SHOWN = {}
for _path in [*DOCUMENTS, *GIN_FILES]:
    _of = _path if _path.suffix == ".md" else next(each for each in _path.parents if each.parent.name == "gin_configs")
    _commands = SHOWN.setdefault(str(_of.relative_to(ROOT)), {})
    _commands |= {tuple(words): _path for words in shown_in(_path)}
SHOWN = {name: commands for name, commands in SHOWN.items() if commands}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """Returns a run from which commands with MODEL_DIR or CHECKPOINT_PATH read their model and task."""
    directory = tmp_path_factory.mktemp("run")
    resolved = resolution.resolve(cli.parse(["train", *RUN.split()]), None)
    (directory / "config.gin").write_text(resolved.text)
    return str(directory)


# The start of the names of Hugging Face directories in shown commands -> the contents of config.json.
MODELS = {
    "bert": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1},
    "t5": {"d_model": 4, "d_ff": 8, "d_kv": 2, "num_heads": 2, "num_layers": 1, "decoder_start_token_id": 0},
    "gpt2": {"n_embd": 4, "n_head": 2, "n_layer": 1},
    **{name: {"n_embd": 4, "n_head": 2, "n_layer": 1, "model_type": "gpt2"} for name in ("assistant", "distilgpt2")},
    "openai-gpt": {"n_embd": 4, "n_head": 2, "n_layer": 1},
    "ModernBERT-base": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
    | {"model_type": "modernbert", "pad_token_id": 0},
    "Qwen3-0.6B": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    | {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 2, "bos_token_id": 3},
}


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory):
    """Returns a directory with a Hugging Face directory per entry of `MODELS`."""
    directory = tmp_path_factory.mktemp("huggingface")
    for name, contents in MODELS.items():
        (directory / name).mkdir()
        (directory / name / "config.json").write_text(json.dumps({"model_type": name, "vocab_size": 99} | contents))
    return directory


# Recipes that are shown with a run to start from, which describes the model -> its directory in `MODELS`.
OWN_RUNS = {
    "--gin_file=runs/finetune.gin": "t5",
    "--gin_file=runs/finetune_classification.gin": "bert",
    **{f"--gin_file=runs/{name}.gin": "gpt2" for name in ("preferences", "reward_model", "grpo", "sft")},
    **{f"--gin_file=studies/{name}.gin": "gpt2" for name in ("rewards_policy", "preferences_run")},
}
# The start of the names of gin files that may follow such a recipe.
ADDED = ("--gin_file=preferences/", "--gin_file=data/cached.gin")


@pytest.fixture(scope="module")
def own_run(tmp_path_factory, huggingface):
    """Returns a function that replaces the run that a command starts from by one with a configuration."""

    def replace(words):
        starts = ("--gin_file", "--gin.HF_PATH")
        files = [word for word in words if word.startswith(starts) and not word.startswith(ADDED)]
        if len(files) != 1 or files[0] not in OWN_RUNS:
            return words
        directory = tmp_path_factory.mktemp("own_run")
        model = interop.config_from_huggingface(str(huggingface / OWN_RUNS[files[0]]))
        (directory / "config.gin").write_text(description.describe(model))
        return [re.sub("(--gin.INITIAL_CHECKPOINT_PATH=).*", rf"\g<1>{directory}", word) for word in words]

    return replace


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A directory with the modules and gin files of the pages for which a user writes some."""
    directory = tmp_path_factory.mktemp("modules")
    for page in ("new_task.md", "own_family.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name, code in re.findall(r"`(\w+\.\w+)`:\n\n```(?:python|gin)\n(.*?)```", text, flags=re.DOTALL):
            (directory / name).write_text(code, encoding="utf-8")
    for path in (ROOT / "tests" / "extensions" / "analysis").glob("neighbors.*"):  # of analysis.md
        (directory / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    yield directory
    for path in directory.glob("*.py"):  # other tests have modules of these names
        sys.modules.pop(path.stem, None)


def test_documentation_shows_every_command():
    commands = [words for of_page in SHOWN.values() for words in of_page]
    assert len(commands) > 700
    assert {words[0] for words in commands} == set(cli.COMMANDS)


@pytest.fixture
def resolve_shown(run_directory, huggingface, own_run, modules, monkeypatch, tmp_path):
    """Returns a function that resolves a command, and the commands that read its run."""
    names = re.compile(f"--gin.HF_PATH=({'|'.join(MODELS)}).*")
    own_files = {f"--gin_file={path.name}": f"--gin_file={path}" for path in modules.glob("*.gin")}
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("T5X_LIKE_TRUSTED_MODULES", ",".join(path.stem for path in modules.glob("*.py")))
    monkeypatch.setattr(epochs, "_rows", lambda settings: 1000)  # the data of the commands is not here
    # The buckets are empty. Without access to the network, each request for them would be repeated for half a minute.
    monkeypatch.setattr(stores, "open_store", lambda path: (fsspec.filesystem("memory"), path.partition("://")[2]))

    def resolve(words):
        if "…" in words:  # stands for the gin files and settings of a run
            words = [word for word in words if word != "…"] + RUN.split()
        words = own_run([names.sub(lambda match: f"--gin.HF_PATH={huggingface / match[1]}", word) for word in words])
        arguments = cli.parse([own_files.get(word, word) for word in words])
        given = dict(arguments.bindings)
        uses_run = resolution.reads_run(cli.COMMANDS[arguments.command], arguments) and "HF_PATH" not in given
        uses_run = uses_run and (not arguments.gin_files or bool({"MODEL_DIR", "CHECKPOINT_PATH"} & given.keys()))
        resolved = resolution.resolve(arguments, run_directory if uses_run else None)
        assert isinstance(resolved, config.Resolved)
        if arguments.command in ("train", "distill"):
            module = given.get("MIXTURE_OR_TASK_MODULE")
            check_stored(resolved, tmp_path, [f"--gin.MIXTURE_OR_TASK_MODULE={module}"] if module else [])

    return resolve


@pytest.mark.parametrize("page", SHOWN)
def test_shown_commands_resolve(page, resolve_shown):
    for words, path in SHOWN[page].items():
        try:
            resolve_shown(words)
        except Exception as error:
            error.add_note(f"{path}: t5x_like {shlex.join(words)}")
            raise


def check_stored(resolved, directory, words=()):
    """Checks that the commands on a run accept its stored configuration."""
    (directory / "config.gin").write_text(resolved.text)
    given = {"eval": words, "infer": words, "convert": ["--output=out"]}
    for command, others in given.items():
        resolution.resolve(cli.parse([command, f"--gin.MODEL_DIR={directory}", *others]), str(directory))


SHOWN_OBJECTS = [
    binding
    for path in DOCUMENTS
    for binding in re.findall(r"`(--gin\.[\w./]+=\"?@[^`]*)`", path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("binding", SHOWN_OBJECTS)
def test_run_with_shown_object_is_read_by_other_commands(binding, tmp_path):
    resolved = resolution.resolve(cli.parse(["train", *RUN.split(), *shlex.split(binding)]), None)
    assert shlex.split(binding)[0].partition("@")[2] in resolved.text
    check_stored(resolved, tmp_path)


def test_eval_has_the_batch_size_of_the_run(run_directory):
    def batch_size(*words):
        return resolution.resolve(cli.parse(["eval", *words]), run_directory if len(words) < 3 else None).macros[
            "BATCH_SIZE"
        ]

    assert batch_size(f"--gin.MODEL_DIR={run_directory}") == 128
    assert batch_size(f"--gin.MODEL_DIR={run_directory}", "--gin.BATCH_SIZE=4") == 4
    files = ["--gin_file=models/t5_1_1/tiny.gin", "--gin_file=commands/eval.gin", "--gin.MIXTURE_OR_TASK_NAME=a"]
    assert batch_size(*files, "--gin.CHECKPOINT_PATH=hub") == 32


def test_embed_has_the_row_length_of_a_model_with_one(tmp_path):
    files = "--gin_file=models/longformer/tiny.gin --gin_file=runs/finetune_longformer.gin"
    settings = "--gin.MIXTURE_OR_TASK_NAME=a --gin.TRAIN_STEPS=1 --gin.LABELS=('a','b') --gin.INITIAL_CHECKPOINT_PATH=x"
    run = resolution.resolve(cli.parse(["train", *files.split(), *settings.split(), "--gin.MAX_LENGTH=64"]), None)
    (tmp_path / "config.gin").write_text(run.text)
    embed = resolution.resolve(cli.parse(["embed", f"--gin.MODEL_DIR={tmp_path}"]), str(tmp_path))
    assert embed.macros["MAX_LENGTH"] == 64


def test_continued_lines_end_with_a_backslash():
    for path in GIN_FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for before, line in zip(lines, lines[1:], strict=False):
            assert not re.match(r"#\s+--", line) or before.endswith("\\"), (path, line)


def test_header_of_every_model_shows_its_command():
    for path in GIN_FILES:
        if path.parent.parent.name == "models" and path.stem != "family" and path.parent.name != "t5_study":
            (words,) = shown_in(path)
            assert f"--gin_file={path.relative_to(ROOT / 'gin_configs')}" in words, path


# These files are only included by other files.
PARTS = (
    "commands/model.gin",
    "commands/model_and_data.gin",
    "commands/train.gin",
    "studies/study.gin",
    "studies/training_small.gin",
    "studies/books_causal_lm_model.gin",
    "studies/books_masked_lm_model.gin",
    "studies/books_span_corruption_model.gin",
    "studies/distillation_mrpc.gin",
    "studies/distillation_sst2.gin",
    "studies/distillation_student.gin",
    "studies/distillation_tinybert.gin",
    "studies/distillation_causal_lm.gin",
    "studies/distillation_masked_lm.gin",
    "studies/distillation_span_corruption.gin",
)
_FOLDERS_OF_PARTS = (
    "analyses/",  # commands/analyze.gin includes them
    *(f"studies/{name}/" for name in ("encoders", "bert_ablations", "long_documents", "optimizers", "words")),
)


def test_header_of_every_gin_file_shows_its_command():
    for path in GIN_FILES:
        if path.parts[-3] == "models":
            continue
        assert path.read_text(encoding="utf-8").startswith("# "), path
        name = str(path.relative_to(ROOT / "gin_configs"))
        assert name in PARTS or name.startswith(_FOLDERS_OF_PARTS) or shown_in(path), path
