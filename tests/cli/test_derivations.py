"""Settings that commands compute from the Hugging Face directory HF_PATH, or from the directory of a model."""

import dataclasses
import json
import shutil

import exported_families
import pytest

from t5x_like import cli, config, interop
from t5x_like.cli import derivations, resolution
from t5x_like.cli.commands import COMMANDS
from t5x_like.config import description
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.data import prompts
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

SIZES = {
    "bert": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1},
    "roberta": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1},
    "longformer": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    | {"attention_window": [4]},
    "gpt2": {"n_embd": 4, "n_head": 2, "n_layer": 1, "bos_token_id": 7, "eos_token_id": 7},
    "openai-gpt": {"n_embd": 4, "n_head": 2, "n_layer": 1},
    "t5": {"d_model": 4, "d_ff": 8, "d_kv": 2, "num_heads": 2, "num_layers": 1, "decoder_start_token_id": 0},
    "bart": {
        **{"d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "llama": {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    | {"bos_token_id": 1, "eos_token_id": [2, 3], "rope_theta": 10.0}
    | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}
TASK = "--gin.MIXTURE_OR_TASK_NAME=a_task"


@pytest.fixture
def directory(tmp_path):
    """Returns a function that writes config.json of a model type, and returns its directory."""

    def write(model_type, **changes):
        path = tmp_path / model_type
        path.mkdir()
        contents = {"model_type": model_type, "vocab_size": 30, **SIZES[model_type], **changes}
        (path / "config.json").write_text(json.dumps(contents))
        (path / "model.safetensors").touch()  # the configuration alone reads no weights
        return path

    return write


def resolve(*words, run=None):
    return resolution.resolve(cli.parse(words), run)


def built(resolved, *names):
    """Returns arguments of the command, or parts of its recipe, or arguments of `open_model` of the model it reads."""
    found = config.arguments(resolved.configured(), without=("partitioner", "data", "loaded"))
    found |= vars(found["recipe"]) if "recipe" in found else {}
    if resolved.root.endswith((".infer", ".evaluate")):
        found |= config.arguments(open_model, without=("partitioner", "data"))
    return [found[name] for name in names]


@pytest.mark.parametrize("command", [name for name, each in COMMANDS.items() if "HF_PATH" in each.settings])
def test_every_command_with_the_setting_reads_a_hugging_face_directory(command):
    assert any("HF_PATH" in each.inputs for each in derivations.of_command(command))


@pytest.mark.notf
@pytest.mark.parametrize("model_type", SIZES)
def test_model_has_all_fields_of_the_directory(directory, model_type):
    path = directory(model_type)
    resolved = resolve("train", "--gin_file=runs/pretrain.gin", f"--gin.HF_PATH={path}", TASK, "--gin.TRAIN_STEPS=1")
    model, initial = built(resolved, "model", "initial")
    assert model == interop.config_from_huggingface(str(path))
    assert initial.path == str(path)
    assert "HF_PATH" not in resolved.text


@pytest.mark.notf
@pytest.mark.parametrize(
    ("model_type", "recipe", "objective", "bos"),
    [
        ("bert", "pretrain", "MaskedLM", None),
        ("t5", "finetune", "SequenceToSequence", 0),
        ("bart", "finetune", "SequenceToSequence", 2),
        ("gpt2", "finetune", "PrefixLM", 7),
        ("gpt2", "pretrain", "CausalLM", 7),
        ("llama", "llama", "CausalLM", 1),
    ],
)
def test_objective_suits_the_model(directory, model_type, recipe, objective, bos):
    words = [f"--gin_file=runs/{recipe}.gin", f"--gin.HF_PATH={directory(model_type)}", TASK, "--gin.TRAIN_STEPS=9999"]
    (found,) = built(resolve("train", *words), "objective")
    assert type(found).__name__ == objective
    if bos is not None:
        assert found.features.bos_id == bos
    if objective == "PrefixLM":
        assert "decoder_prefix" not in [feature.name for feature in found.features.features]  # causal
        assert found.features.separator == ""  # nothing between prompt and response
        (changed,) = built(resolve("train", *words, "--gin.SEPARATOR=None"), "objective")
        assert changed.features.separator is None  # EOS


@pytest.mark.notf
def test_adapted_decoder_is_that_of_the_directory(directory):
    path = directory("llama")
    files = ("adaptation/encoder_decoder.gin", "runs/pretrain.gin", "adaptation/balanced.gin")
    words = [*(f"--gin_file={file}" for file in files), f"--gin.HF_PATH={path}", TASK, "--gin.TRAIN_STEPS=1"]
    resolved = resolve("train", *words)
    model, objective, initial = built(resolved, "model", "objective", "initial")
    decoder = dataclasses.replace(interop.config_from_huggingface(str(path)), special_tokens=None)
    assert model.encoder == model.decoder == decoder
    assert isinstance(objective, SequenceToSequence) and objective.features.first_id == 1
    assert initial.path == str(path) and initial.mapping
    (given,) = built(resolve("train", *words, "--gin.LlamaConfig.num_layers=2"), "model")
    assert given.decoder_layers == 2
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"bos_token_id": None}))
    with pytest.raises(UserError, match="llama: config.json has no bos_token_id, .* Give --gin.BOS_ID="):
        resolve("train", *words)
    (objective,) = built(resolve("train", *words, "--gin.BOS_ID=7"), "objective")
    assert objective.features.first_id == 7


@pytest.mark.notf
def test_directory_does_not_replace_a_model_file(directory):
    words = ["--gin_file=models/t5gemma/tiny.gin", "--gin_file=runs/pretrain.gin", TASK, "--gin.TRAIN_STEPS=1"]
    message = "HF_PATH=.*llama: the directory describes the model, but a gin file sets MODEL=.*T5GemmaConfig.* too"
    with pytest.raises(UserError, match=message):
        resolve("train", *words, f"--gin.HF_PATH={directory('llama')}")


@pytest.mark.notf
def test_inputs_begin_with_bos_if_the_tokenizer_of_an_encoder_decoder_says_so(tmp_path):
    """The published tokenizer of T5Gemma does; an export of a run whose inputs end in EOS does not."""
    path, run = tmp_path / "t5gemma", tmp_path / "run"
    exported_families.write("t5gemma", path)
    train = ["train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={path}", TASK, "--gin.TRAIN_STEPS=1"]
    infer = ["infer", f"--gin.HF_PATH={path}", "--input=in.jsonl", "--output=out.jsonl"]

    def begins(words, run=None):
        (objective,) = built(resolve(*words, run=run), "objective")
        assert objective.features.bos_id == 2
        return prompts.encoder_bos(objective.features) == 2

    assert begins(train) and begins(infer)
    assert not begins([*train, "--gin.ENCODER_BOS=False"])
    convert(Source(str(path)), Target(str(run)))
    assert begins(["infer", f"--gin.MODEL_DIR={run}", *infer[2:]], str(run))
    start = [word.replace(f"HF_PATH={path}", f"INITIAL_CHECKPOINT_PATH={run}") for word in train]
    assert begins(start) and not begins([*start, "--gin.ENCODER_BOS=False"])
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GemmaTokenizer", "add_bos_token": False, "add_eos_token": True})
    )
    assert not begins(train) and not begins(infer)


@pytest.mark.notf
def test_fine_tuning_a_decoder_without_bos_needs_its_id(directory):
    words = ["train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={directory('openai-gpt')}", TASK]
    words += ["--gin.TRAIN_STEPS=1"]
    with pytest.raises(UserError, match=r"bos_id=None: not a token id, .* Give --gin\.BOS_ID="):
        built(resolve(*words), "objective")
    (found,) = built(resolve(*words, "--gin.BOS_ID=3"), "objective")
    assert found.features.bos_id == 3


@pytest.mark.notf
def test_weights_of_another_vocabulary_do_not_name_special_tokens(directory):
    """The ids of config.json belong to the old vocabulary: an export has those of its tokenizer."""
    path, t5 = (f"--gin.HF_PATH={directory(name)}" for name in ("llama", "t5"))
    words = ["train", "--gin_file=runs/llama.gin", TASK]
    (model,) = built(resolve(*words, path), "model")
    assert dict(model.special_tokens.config)["bos_token_id"] == 1
    other = "--gin.INITIAL_OTHER_VOCABULARY=True"
    with pytest.raises(UserError, match=r"BOS_ID=1: of the vocabulary of the pretrained weights.* Give --gin\.BOS_ID="):
        resolve(*words, path, other)
    model, objective = built(resolve(*words, path, other, "--gin.BOS_ID=None"), "model", "objective")
    assert model.special_tokens is None and objective.features.first_id is None
    (objective,) = built(
        resolve("train", "--gin_file=runs/finetune.gin", t5, TASK, other, "--gin.TRAIN_STEPS=1"), "objective"
    )
    assert objective.features.bos_id == 0  # padding
    resolve(
        "train",
        "--gin_file=runs/finetune_classification.gin",
        path,
        TASK,
        other,
        "--gin.LABELS=('a', 'b')",
        "--gin.TRAIN_STEPS=1",
    )


@pytest.mark.notf
def test_macros_of_the_family_replace_published_values(directory):
    path = directory("bert", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    words = ["train", "--gin_file=runs/pretrain.gin", f"--gin.HF_PATH={path}", TASK, "--gin.TRAIN_STEPS=1"]
    (model,) = built(resolve(*words), "model")
    assert (model.dropout_rate, model.attention_dropout_rate, model.activations) == (0.2, 0.3, ("gelu_exact",))
    (model,) = built(resolve(*words, "--gin.DROPOUT_RATE=0.0", "--gin.ACTIVATIONS=('relu',)"), "model")
    assert (model.dropout_rate, model.attention_dropout_rate, model.activations) == (0.0, 0.0, ("relu",))
    (model,) = built(resolve(*words, "--gin.BertConfig.norm_epsilon=0.5"), "model")
    assert (model.norm_epsilon, model.dropout_rate) == (0.5, 0.2)


@pytest.mark.notf
@pytest.mark.parametrize(
    ("model_type", "head"),
    [
        ("bert", "PooledFirstToken"),
        ("roberta", "DenseFirstToken"),
        ("gpt2", "LastToken"),
        ("llama", "LastToken"),
        ("bart", "DecoderLastToken"),
    ],
)
def test_classification_has_the_published_head(directory, model_type, head):
    words = [f"--gin.HF_PATH={directory(model_type)}", TASK, "--gin.LABELS=('a', 'b', 'c')", "--gin.TRAIN_STEPS=1"]
    resolved = resolve("plan", "--gin_file=runs/finetune_classification.gin", *words, "--topology=v5e:2x2")
    assert f"HEAD = @t5x_like.objectives.heads.{head}()" in resolved.text
    if model_type == "bart":
        assert "DecoderLastToken:\n    dropout_rate = 0.0\n    bos_id = 2\n" in resolved.text


@pytest.mark.notf
@pytest.mark.parametrize("setting", ["HF_PATH", "CHECKPOINT_PATH"])
def test_commands_read_a_directory_alone(directory, setting):
    path = directory("gpt2")
    words = [f"--gin.{setting}={path}", "--input=in.jsonl", "--output=out.jsonl"]
    model, objective, checkpoint = built(resolve("infer", *words), "model", "objective", "path")
    assert model == interop.config_from_huggingface(str(path))
    assert (type(objective).__name__, objective.features.bos_id, checkpoint) == ("CausalLM", 7, str(path))


LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}"
SEARCH = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3, "max_length": 142}
SEARCH |= {"min_length": 56, "forced_bos_token_id": 5}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 7, "num_return_sequences": 2}


def of_search(**changes):
    found = dict(beams=4, alpha=2.0, early_stopping=True, no_repeat_ngram_size=3, max_length=141, min_length=55)
    return Decoding(**found | dict(forced_bos_id=5, forced_eos_id=2) | changes)


@pytest.mark.notf
@pytest.mark.parametrize(
    ("model_type", "generation", "words", "expected"),
    [
        ("bart", SEARCH, [], of_search()),
        ("bart", SEARCH, ["--gin.BEAMS=2", "--gin.Decoding.min_length=3"], of_search(beams=2, min_length=3)),
        ("bart", SEARCH | {"min_length": 3}, [LENGTHS], of_search(max_length=None, min_length=2)),
        (
            *("bart", SEARCH, ["--gin.TEMPERATURE=0.5"]),
            of_search(beams=1, early_stopping=False, temperature=0.5),
        ),
        # transformers has top_k=50 unless a file sets it, and several ids of EOS.
        (
            *("llama", SAMPLING, []),
            Decoding(temperature=0.6, top_k=50, top_p=0.9, max_length=7, samples=2, eos_ids=(2, 3)),
        ),
        ("llama", SAMPLING, ["--gin.BEAMS=3", "--gin.EOS_ID=2"], Decoding(beams=3, max_length=7)),
        ("gpt2", {"temperature": 0.7, "top_k": 5}, [], Decoding()),
    ],
)
def test_generation_is_that_of_the_directory_and_of_the_user(directory, model_type, generation, words, expected):
    path = directory(model_type, **generation)
    words = ["infer", f"--gin.HF_PATH={path}", "--input=in.jsonl", "--output=out.jsonl", *words]
    assert built(resolve(*words), "decoding") == [expected]


@pytest.mark.notf
def test_generation_config_replaces_config_and_unsupported_keys_are_named(directory, caplog):
    path = directory("gpt2", num_beams=4)
    contents = {"num_beams": 2, "diversity_penalty": 0.5, "max_length": 50, "typical_p": 1.0, "eos_token_id": 7}
    (path / "generation_config.json").write_text(json.dumps(contents))
    words = ["eval", f"--gin.HF_PATH={path}", TASK]
    with caplog.at_level("WARNING", logger="absl"):
        assert built(resolve(*words), "decoding") == [Decoding(beams=2)]
    assert "generation_config.json: diversity_penalty=0.5 is not supported and has no effect" in caplog.text
    assert "max_length=50 includes the prompt and has no effect" in caplog.text and "typical_p" not in caplog.text
    (path / "generation_config.json").write_text('{"num_beams": "two"}')
    with pytest.raises(UserError, match="generation_config.json: BEAMS = 'two' must be an integer"):
        built(resolve(*words), "decoding")


@pytest.mark.notf
def test_prompted_language_model_has_the_generation_of_the_directory(directory):
    files = ["--gin_file=commands/eval.gin", "--gin_file=objectives/prompted_lm.gin"]
    resolved = resolve("eval", *files, f"--gin.HF_PATH={directory('gpt2', num_beams=3)}", TASK)
    assert built(resolved, "decoding") == [Decoding(beams=3)]


@pytest.mark.notf
@pytest.mark.parametrize("initial", [True, False])
def test_run_has_the_generation_of_the_directory_that_it_started_from(directory, tmp_path, initial):
    path = directory("bart", num_beams=4)
    words = ["train", "--gin_file=models/bart/base.gin", "--gin_file=runs/bart.gin", TASK, "--gin.TRAIN_STEPS=1"]
    words += [f"--gin.VOCABULARY_PATH={path}"] + [f"--gin.INITIAL_CHECKPOINT_PATH={path}"] * initial
    run = tmp_path / "run"
    shutil.copytree(path, run / "tokenizer")
    (run / "config.gin").write_text(resolve(*words).text)
    resolved = resolve("infer", "--input=in.jsonl", "--output=out.jsonl", run=str(run))
    assert built(resolved, "decoding") == [Decoding(beams=4, forced_eos_id=2) if initial else Decoding()]


@pytest.mark.notf
def test_fine_tuned_directory_has_the_objective_of_its_head(directory):
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    path = directory("bert", architectures=["BertForSequenceClassification"], **labels)
    resolved = resolve("infer", f"--gin.HF_PATH={path}", "--input=in.jsonl", "--output=out.jsonl")
    (objective,) = built(resolved, "objective")
    assert type(objective).__name__ == "SequenceClassification" and objective.labels == ("no", "yes")


@pytest.mark.notf
@pytest.mark.parametrize(
    ("model_type", "architecture", "objective"),
    [
        ("bert", "BertForTokenClassification", "TokenClassification"),
        ("roberta", "RobertaForQuestionAnswering", "SpanExtraction"),
        ("longformer", "LongformerForQuestionAnswering", "SpanExtraction"),  # whose GLOBAL_TOKENS are an object
        ("gpt2", "GPT2DoubleHeadsModel", "MultipleChoice"),
    ],
)
def test_every_head_has_its_objective(directory, model_type, architecture, objective):
    path = directory(model_type, architectures=[architecture])
    words = ["infer", f"--gin.HF_PATH={path}", "--input=in.jsonl", "--output=out.jsonl"]
    if objective == "MultipleChoice":
        with pytest.raises(UserError, match="NUM_CHOICES"):
            resolve(*words)
        words.append("--gin.NUM_CHOICES=3")
    (found,) = built(resolve(*words), "objective")
    assert type(found).__name__ == objective
    stored = path.parent / "run"
    stored.mkdir()
    (stored / "config.gin").write_text(
        description.describe(interop.config_from_huggingface(str(path)), interop.task_head(str(path)))
    )
    words[1] = f"--gin.MODEL_DIR={stored}"
    (found,) = built(resolve(*words, run=str(stored)), "objective")
    assert type(found).__name__ == objective


@pytest.mark.notf
@pytest.mark.parametrize("key", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_unsupported_variant_is_refused_by_its_key(directory, key):
    with pytest.raises(UserError, match=f"config.json: {key} True: not supported"):
        resolve("train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={directory('gpt2', **{key: True})}", TASK)


@pytest.mark.notf
def test_missing_directory_raises(tmp_path):
    with pytest.raises(UserError, match="HF_PATH=nowhere: not found..* `hf download nowhere --local-dir nowhere`"):
        resolve("train", "--gin_file=runs/finetune.gin", "--gin.HF_PATH=nowhere", TASK)


@pytest.mark.notf
def test_directory_as_a_run_needs_a_model(directory):
    words = ["train", "--gin_file=runs/finetune.gin", TASK, "--gin.TRAIN_STEPS=1"]
    given = f"--gin.INITIAL_CHECKPOINT_PATH={directory('gpt2')}"
    with pytest.raises(UserError, match="a Hugging Face directory, and no file .* Give --gin.HF_PATH="):
        resolve(*words, given)
    assert resolve(words[0], "--gin_file=models/gpt2/tiny.gin", *words[1:], given)


@pytest.mark.notf
def test_run_and_directory_exclude_each_other(directory, tmp_path):
    words = ["--gin_file=runs/pretrain.gin", f"--gin.HF_PATH={directory('gpt2')}", TASK, "--gin.TRAIN_STEPS=1"]
    (tmp_path / "config.gin").write_text(resolve("train", *words).text)
    with pytest.raises(UserError, match=r"HF_PATH=.*has its own model"):
        resolve("eval", f"--gin.MODEL_DIR={tmp_path}", words[1], run=str(tmp_path))


@pytest.mark.notf
def test_resumed_run_reads_its_copy(directory, tmp_path):
    path, run = directory("gpt2"), tmp_path / "run"
    words = ["train", "--gin_file=runs/finetune.gin", f"--gin.HF_PATH={path}", TASK, "--gin.TRAIN_STEPS=1"]
    words += [f"--gin.MODEL_DIR={run}"]
    before = resolve(*words).text
    (run / "checkpoints/1").mkdir(parents=True)
    shutil.move(path, run / "tokenizer")
    assert resolve(*words).text == before
