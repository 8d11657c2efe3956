"""The README.md of an exported model: what it is, how it was trained as far as the run knows, and how to load it."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from absl import logging

from t5x_like import paths
from t5x_like.config.stored import StoredSettings
from t5x_like.config.values import Reference, is_literal
from t5x_like.data import provenance
from t5x_like.data.prompts import PromptFormat
from t5x_like.errors import UserError
from t5x_like.interop.generation import CONFIG
from t5x_like.metrics import read_metrics, read_starts
from t5x_like.metrics.checkpoint_evaluations import CheckpointEvaluations
from t5x_like.metrics.starts import changes
from t5x_like.models.base import ModelConfig
from t5x_like.reporting.markdown import code, table
from t5x_like.version import __version__

README = "README.md"
Row = Mapping[str, Any]
T = TypeVar("T")

# Part of the name of a class of transformers -> task of the Hub.
_PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
# The classes whose records `infer` reads: as they are, or by the columns of a task.
_GENERATE = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
_PREDICT = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    "ForMultipleChoice",
)
_SIZES = (
    *("vocab_size", "embed_dim", "mlp_dim", "num_layers", "encoder_layers", "decoder_layers", "num_heads"),
    *("num_kv_heads", "head_dim", "max_length"),
)
# Arguments of the function that trained, and what the card calls them.
_SETTINGS = {
    "objective": "Objective",
    "teachers": "Teachers",
    "losses": "Losses of the distillation",
    "optimizer": "Optimizer",
    "update.max_grad_norm": "Largest norm of gradients",
    "update.ema_decay": "Decay of the averaged parameters",
    "initial.path": "Initial weights",
    "initial.network": "Network of the initial weights",
    "initial.target": "Network that starts from them",
    "initial.layers": "Initial layers",
    "seed": "Seed",
}


class ExportedRun(NamedTuple):
    """What a run directory says about an exported checkpoint.

    Attributes:
      name: name of the directory.
      settings: its configuration.
      step: step of the checkpoint.
      choice: how the checkpoint was chosen: `latest`, `best`, or another text if it was named.
      source: the weights that were converted to the run without training; None for a run that trained.
      metrics: the evaluation that the checkpoint was saved with, by metric; {} if there is none.
      start: the record of the start that saved it; {} for a run of an earlier version.
      tokens: number of tokens of the steps, without padding, computed from the throughput of the metrics; None if no
        step was measured.
      network: name of the exported network; None for the model.
      prompts: how it reads prompts; None if it does not continue texts, or did not train.
      earlier: the records of the earlier starts of the run, which may have read other data.
    """

    name: str
    settings: StoredSettings
    step: int
    choice: str
    source: str | None
    metrics: Mapping[str, float]
    start: Mapping[str, Any]
    tokens: float | None = None
    network: str | None = None
    prompts: PromptFormat | None = None
    earlier: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def read(
        cls, checkpoint: str, choice: str, network: str | None = None, prompts: PromptFormat | None = None
    ) -> "ExportedRun":
        """Reads a run.

        Args:
          checkpoint: path of the checkpoint, `MODEL_DIR/checkpoints/STEP`.
          choice: how it was chosen.
          network: name of the exported network.
          prompts: how the run reads prompts.
        """
        directory, _, last = checkpoint.rstrip("/").rpartition("/")
        model_dir, step = directory.rpartition("/")[0], int(last)
        file = paths.join(directory, last, "about", "metadata")
        about = _readable(lambda file: dict(json.loads(paths.read_text(file))), file, {}) if paths.exists(file) else {}
        starts = _readable(lambda model_dir: _starts(model_dir, step), model_dir, [])
        return cls(
            name=model_dir.rpartition("/")[2] or model_dir,
            settings=StoredSettings.read(model_dir),
            step=step,
            choice=choice,
            source=about.get("converted_from"),
            metrics=CheckpointEvaluations(directory).get(step) or {},
            start=starts[-1] if starts else {},
            tokens=_tokens(model_dir, step),
            network=network,
            prompts=prompts,
            earlier=starts[:-1],
        )

    @property
    def data(self) -> dict[str, Any]:
        """The arguments of the source of the training data; {} if they are not known."""
        found = self.settings.value("data")
        return self.settings.arguments(found) if isinstance(found, Reference) else {}


def _starts(model_dir: str, step: int) -> list[Row]:
    """Returns the starts of a run before a step."""
    return [start for start in read_starts(model_dir) if start.get("step", 0) < max(step, 1)]


def _readable(read: Callable[[str], T], path: str, default: T) -> T:
    """Returns what a run has recorded, or a default if it is damaged: a card is not worth a failed export."""
    try:
        return read(path)
    except Exception as error:  # values of other types than those that a run writes may raise any error
        logging.warning("the model card lacks what a damaged file of %s says: %s", path, error)
        return default


def _tokens(model_dir: str, step: int) -> float | None:
    measured, steps, previous = 0.0, 0, 0
    for row in _readable(read_metrics, model_dir, []):
        if row["split"] == "train" and row["step"] <= step:
            covered, previous = row["step"] - previous, row["step"]
            if None not in (rate := (row.get("tokens_per_second"), row.get("seconds_per_step"))):
                measured, steps = measured + rate[0] * rate[1] * covered, steps + covered
    return measured / steps * step if steps else None


def write(directory: str, run: ExportedRun, model: ModelConfig, parameters: Mapping[str, int]) -> None:
    """Writes the card of an exported model.

    Args:
      directory: the exported directory, with its config.json and the files of its tokenizer.
      run: the run that it is exported from.
      model: the configuration of the model.
      parameters: number of parameters of the model and of its heads, by `model` and `objective`.

    Raises:
      UserError: the directory has a README.md.
    """
    file = paths.join(directory, README)
    if paths.exists(file):
        raise UserError(f"{file}: exists. Give another directory, or move the file.")
    hf_config = json.loads(paths.read_text(paths.join(directory, CONFIG)))
    has_tokenizer = "tokenizer_config.json" in paths.listdir(directory)
    sections = (
        _front_matter(hf_config),
        _introduction(run, hf_config),
        _model(run, model, hf_config, parameters),
        [] if run.source else _training(run),
        [] if run.source else _data(run),
        [] if run.source else _checkpoint(run),
        _versions(run),
        _use(run, hf_config, has_tokenizer),
    )
    paths.write_atomic(file, "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n")


def _num_choices(run: ExportedRun) -> int | None:
    """Returns the number of choices per example; None for another objective than multiple choice."""
    objective = run.settings.value("objective")
    return run.settings.arguments(objective).get("num_choices") if isinstance(objective, Reference) else None


def _prompts(run: ExportedRun, has_tokenizer: bool) -> list[str]:
    """Returns what a client has to know about prompts."""
    if run.prompts is None or not run.prompts.has_pairs:
        return []
    separator = run.prompts.separator
    between = "the end-of-text token" if separator is None else code(repr(separator)) if separator else "nothing"
    template = ", as in the chat template of the tokenizer" if has_tokenizer else ""
    return ["", f"The model was trained on prompts and responses, with {between} between the two{template}."]


def _class(hf_config: Mapping[str, Any]) -> str:
    return hf_config["architectures"][0]


def _front_matter(hf_config: Mapping[str, Any]) -> list[str]:
    """Returns the metadata of the Hub that are known. None of them is text of the user."""
    pipeline = next((tag for part, tag in _PIPELINES.items() if part in _class(hf_config)), None)
    if hf_config.get("problem_type") == "regression":
        pipeline = None
    tag = [f"pipeline_tag: {pipeline}"] if pipeline else []
    return ["---", "library_name: transformers", *tag, "tags:", "- t5x_like", "---"]


def _introduction(run: ExportedRun, hf_config: Mapping[str, Any]) -> list[str]:
    lines = [f"# {_class(hf_config)} of the run {code(run.name)}", ""]
    if run.source:
        return [*lines, f"Converted from {code(run.source)} by t5x_like {__version__}, without training."]
    return [*lines, f"Trained and exported with t5x_like {__version__}. The facts below describe the run."]


def _model(
    run: ExportedRun, model: ModelConfig, hf_config: Mapping[str, Any], parameters: Mapping[str, int]
) -> list[str]:
    rows = [("Network of the run", code(run.network))] if run.network else []
    rows += [("Family", code(hf_config["model_type"])), ("Class of transformers", code(_class(hf_config)))]
    rows += [("Parameters of the model", f"{parameters['model']:,}")]
    rows += [("Parameters of its heads", f"{parameters['objective']:,}")] if parameters["objective"] else []
    rows += [(name, code(getattr(model, name))) for name in _SIZES if getattr(model, name, None) is not None]
    if labels := hf_config.get("id2label"):
        name = "Scores" if hf_config.get("problem_type") == "regression" else "Labels"
        rows.append((name, ", ".join(map(code, labels.values()))))
    return ["## Model", "", *table(("", ""), rows)]


def _training(run: ExportedRun) -> list[str]:
    settings = run.settings
    values = {title: settings.value(name) for name, title in _SETTINGS.items()}
    rows = [(title, code(settings.shown(value))) for title, value in values.items() if value not in (None, (), {})]
    data = run.data
    rows += [
        (title, code(repr(data[name])))
        for name, title in (("batch_size", "Rows per step"), ("task_feature_lengths", "Lengths"), ("pack", "Packed"))
        if data.get(name) is not None
    ]
    total = settings.value("periods.total")
    rows += [("Steps", f"{run.step:,}" + (f" of {total:,}" if isinstance(total, int) else ""))]
    lengths = data.get("task_feature_lengths")
    if run.tokens is not None:
        rows += [("Tokens seen", f"about {run.tokens:,.0f} without padding, by the throughput of the measured steps")]
    if isinstance(lengths, dict) and isinstance(size := data.get("batch_size"), int):
        tokens = run.step * size * sum(lengths.values())
        rows += [("Positions seen", f"{tokens:,} with padding: steps × rows × lengths")]
    return ["## Training", "", *table(("setting", "value"), rows)]


def _data(run: ExportedRun) -> list[str]:
    arguments = run.data
    rows = [
        (title, code(repr(arguments[name])))
        for name, title in (
            ("mixture_or_task_name", "Task or mixture"),
            ("split", "Split"),
            ("rates", "Rates"),
            ("task_arguments", "Arguments of the task"),
            ("data_files", "Files"),
            ("cache_dir", "Cache"),
        )
        if is_literal(arguments.get(name)) and arguments.get(name) not in (None, {}, "")
    ]
    # Descriptions of sources and names of files are left out: they may tell more than the data.
    recorded = [
        (
            code(use),
            code(entry.get("task") or entry.get("name")),
            code(entry["split"]) if "split" in entry else "",
            f"{entry['examples']:,}" if isinstance(entry.get("examples"), int) else "",
            f"{entry['rows']:,}" if isinstance(entry.get("rows"), int) else "",
            code(digest) if (digest := provenance.identity(entry)) else "",
        )
        for use, entry in _recorded(run)
    ]
    of_files = table(("used for", "task", "split", "examples", "rows of the cache", "hash"), recorded)
    lines = [*table(("setting", "value"), rows), *([""] if rows and of_files else []), *of_files]
    return ["## Data", "", *lines] if lines else []


def _recorded(run: ExportedRun) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields what data are used for, and what is recorded about them: of all starts, each data once."""
    seen = []
    for start in (*run.earlier, run.start):
        for role, entry in ((role, entry) for role, entries in start.get("data", {}).items() for entry in entries):
            if (role, entry) not in seen:
                seen.append((role, entry))
                yield (f"{role} from step {start['step']}" if start.get("step") else role), entry


def _checkpoint(run: ExportedRun) -> list[str]:
    how = {"latest": "the latest one", "best": "the best one by its evaluation"}.get(run.choice, "chosen by the user")
    lines = ["## Checkpoint", "", f"Step {run.step:,}, {how}."]
    if not run.metrics:
        return [*lines, "It was saved without an evaluation."]
    rows = [(code(name), f"{value:.6g}") for name, value in sorted(run.metrics.items())]
    return [*lines, "Its evaluation:", "", *table(("metric", "value"), rows)]


def _versions(run: ExportedRun) -> list[str]:
    rows = [(code(name), code(version)) for name, version in run.start.get("versions", {}).items()]
    for repository in run.start.get("code", ()):
        name = str(repository.get("directory", "")).rstrip("/").rpartition("/")[2]
        rows.append((f"commit of {code(name)}", code(repository.get("commit")) + changes(repository)))
    return ["## Versions", "", *table(("", ""), rows)] if rows else []


def _use(run: ExportedRun, hf_config: Mapping[str, Any], has_tokenizer: bool) -> list[str]:
    name = _class(hf_config)
    imported = ["AutoTokenizer", name] if has_tokenizer else [name]
    load = [f'model = {name}.from_pretrained(".")']
    load += ['tokenizer = AutoTokenizer.from_pretrained(".")'] if has_tokenizer else []
    return [
        "## Use",
        "",
        "In this directory, with transformers:",
        "",
        "```python",
        f"from transformers import {', '.join(imported)}",
        "",
        *load,
        "```",
        *_prompts(run, has_tokenizer),
        "",
        "With t5x_like, from Python:",
        "",
        "```python",
        "from t5x_like import interop",
        "",
        'config, model = interop.from_huggingface(".")',
        "```",
        "",
        "As a run, which training can start from, and for predictions:" if has_tokenizer else "As a run:",
        "",
        *(f"    {command}" for command in _commands(run, name, has_tokenizer)),
    ]


def _commands(run: ExportedRun, name: str, has_tokenizer: bool) -> Iterator[str]:
    """Yields the commands that read the directory, without those whose settings are not known."""
    yield "t5x_like convert --input=. --output=run"
    data, records = run.data, "rows.jsonl"
    lengths = data.get("task_feature_lengths")
    if not has_tokenizer or not isinstance(lengths, dict):
        return
    settings: dict[str, Any] = {}
    if name.endswith(_GENERATE):
        separator = "" if run.prompts is None else run.prompts.separator
        if separator is None:
            return  # records of text do not end in EOS
        if separator:
            settings["PROMPT_SEPARATOR"] = repr(separator)
        records = "inputs.txt"
        if lengths.keys() == {"targets"} and (half := lengths["targets"] // 2):
            lengths = {"inputs": half, "targets": half}
    elif name.endswith(_PREDICT):
        for macro, argument in (
            ("MIXTURE_OR_TASK_NAME", "mixture_or_task_name"),
            ("MIXTURE_OR_TASK_MODULE", "module"),
            ("TASK_ARGUMENTS", "task_arguments"),
        ):
            if (value := data.get(argument)) is not None:
                settings[macro] = value
        if not settings.get("MIXTURE_OR_TASK_NAME"):
            return
        if (choices := _num_choices(run)) is not None:
            settings["NUM_CHOICES"] = choices
    else:
        return
    settings["TASK_FEATURE_LENGTHS"] = lengths
    words = [f"--gin.{macro}={_quoted(str(value))}" for macro, value in settings.items()]
    command = " ".join(["t5x_like infer --gin.HF_PATH=.", *words, f"--input={records}", "--output=predictions.jsonl"])
    if command.isprintable():  # a line end would leave the block
        yield command


def _quoted(value: str) -> str:
    """Returns a word of the shell, in double quotes where nothing in it has an effect there."""
    plain = shlex.quote(value)
    return plain if plain == value or set(value) & set('"$`\\!') else f'"{value}"'
