"""Converting weights from and to Hugging Face directories."""

import contextlib
import dataclasses
import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like import config, interop, parameters, paths
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.cli import derivations as cli_derivations
from t5x_like.config.description import describe
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.data import batches, specs
from t5x_like.errors import RunFailed, UserError
from t5x_like.interop import model_tokens, safetensors_files
from t5x_like.layers.rope_scaling import Llama3
from t5x_like.loading import open_model
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.special_tokens import SpecialTokens
from t5x_like.models.t5 import T5Config
from t5x_like.objectives import heads
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import forward
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.span_boundary import SpanBoundary
from t5x_like.partitioning import Partitioner

BERT = BertConfig(vocab_size=31, embed_dim=8, mlp_dim=12, num_heads=2, head_dim=4, num_layers=2, max_length=16)
GPT = GPTConfig(
    vocab_size=23,
    embed_dim=16,
    mlp_dim=64,
    num_heads=2,
    head_dim=8,
    num_layers=2,
    max_length=12,
    special_tokens=SpecialTokens({"bos_token_id": 22, "eos_token_id": 22}),
)


@pytest.fixture
def directory(tmp_path):
    """Returns a Hugging Face directory with a BERT and its heads."""
    model = BERT.make(jax.random.key(0))
    heads = Joint([MaskedLM(), NextSentence()]).init(jax.random.key(1), model)
    path = tmp_path / "there"
    interop.to_huggingface({"model": model, "objective": heads}, BERT, str(path))
    return path


def tensors(directory):
    return dict(safetensors_files.Tensors(str(directory)))


def test_round_trip_keeps_all_tensors(directory, tmp_path):
    run, back = str(tmp_path / "run"), str(tmp_path / "back")
    assert convert(Source(str(directory)), Target(run)) == run
    convert(Source(run, model=BERT), Target(back))
    original, returned = tensors(directory), tensors(back)
    assert returned.keys() == original.keys()
    for name in original:
        np.testing.assert_array_equal(returned[name], original[name], err_msg=name)
    for described in (directory, tmp_path / "back"):
        assert json.loads((described / "config.json").read_text())["model_type"] == "bert"


def test_converted_directory_can_be_read_as_a_run(directory, tmp_path):
    run = str(tmp_path / "run")
    convert(Source(str(directory)), Target(run))
    objective = MaskedLM()
    params = open_model(run, model=BERT, objective=objective, partitioner=Partitioner(rules="dp")).read()
    expected = interop.read(str(directory), BERT)
    for name, leaf in parameters.stack(parameters.named_leaves(params)).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def test_stored_config_describes_the_model(directory, tmp_path):
    run = tmp_path / "run"
    convert(Source(str(directory)), Target(str(run)))
    bindings = [("CHECKPOINT_PATH", "x"), ("OUTPUT_PATH", "y")]
    read = config.load(
        "t5x_like.convert.convert", files=["commands/convert.gin"], bindings=bindings, run_directory=str(run)
    ).text
    assert "max_length = 16" in read and "vocab_size = 31" in read


def test_round_trip_keeps_rope_scaling_and_special_tokens(tmp_path):
    there, run, back = (tmp_path / name for name in ("there", "run", "back"))
    tokens = SpecialTokens({"bos_token_id": 128000, "eos_token_id": [128001, 128009]}, {"eos_token_id": 128009})
    llama = LlamaConfig(
        vocab_size=11,
        embed_dim=4,
        mlp_dim=6,
        num_heads=2,
        head_dim=2,
        num_layers=1,
        max_length=64,
        rope_scaling=Llama3(original_max_length=16),
        special_tokens=tokens,
    )
    interop.to_huggingface({"model": llama.make(jax.random.key(0))}, llama, str(there))
    convert(Source(str(there)), Target(str(run)))
    run_config = config.load(
        "t5x_like.convert.convert",
        files=["commands/convert.gin"],
        bindings=[("CHECKPOINT_PATH", str(run)), ("OUTPUT_PATH", str(back))],
        run_directory=str(run),
    )
    run_config.configured()()
    for file in ("config.json", "generation_config.json"):
        assert json.loads((back / file).read_text()) == json.loads((there / file).read_text())
    assert interop.config_from_huggingface(str(back)) == llama


def test_bare_model_comes_back_as_a_language_model_and_is_logged(tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    there, run, back = (str(tmp_path / name) for name in ("there", "run", "back"))
    interop.to_huggingface({"model": GPT.make(jax.random.key(0))}, GPT, there)
    file = tmp_path / "there/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["GPT2Model"]}))
    convert(Source(there), Target(run))
    assert (
        "a GPT2Model is read as a language model with tied embeddings. Its export is a GPT2LMHeadModel" in caplog.text
    )
    convert(Source(run, model=GPT), Target(back))
    assert json.loads((tmp_path / "back/config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]


def test_bare_model_without_its_untied_logits_raises(tmp_path):
    llama = LlamaConfig(vocab_size=11, embed_dim=4, mlp_dim=6, num_heads=2, head_dim=2, num_layers=1, max_length=8)
    interop.to_huggingface({"model": llama.make(jax.random.key(0))}, llama, str(tmp_path / "there"))
    file = tmp_path / "there/model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "lm_head.weight"}, file)
    with pytest.raises(ValueError, match="tensor 'lm_head.weight' is missing.*Save the class with a language model"):
        convert(Source(str(tmp_path / "there")), Target(str(tmp_path / "run")))


def test_head_that_transformers_lacks_raises_unless_it_is_left_out(tmp_path, caplog):
    objective = Joint([MaskedLM(), SpanBoundary(max_targets=3, position_dim=2)])
    model = BERT.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    with contextlib.closing(Checkpoints(str(tmp_path / "run/checkpoints"))) as checkpoints:
        checkpoints.save(0, {"params": parameters.stack(parameters.named_leaves(params))}, about={})
        checkpoints.wait()
    source, there = Source(str(tmp_path / "run"), model=BERT), str(tmp_path / "there")
    with pytest.raises(UserError, match="span_boundary.*Give HEADS='supported' to export a BertForMaskedLM without sp"):
        convert(source, Target(there))
    assert not (tmp_path / "there").exists()
    convert(source, Target(there, heads="supported"))
    assert json.loads((tmp_path / "there/config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    assert "exported without span_boundary" in caplog.text
    assert "cls.predictions.bias" in tensors(tmp_path / "there")


@pytest.mark.parametrize("to_run", [True, False])
def test_non_finite_weights_raise_unless_they_are_allowed(directory, tmp_path, caplog, to_run):
    path, output, model = str(directory), tmp_path / "output", None if to_run else BERT
    if not to_run:
        path = convert(Source(path), Target(str(tmp_path / "run")))
        checkpoints = Checkpoints(f"{path}/checkpoints")
        shapes = {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=Partitioner(rules="dp").replicated)
            for name, shape in checkpoints.shapes(0).items()
        }
        params = {name.removeprefix("params/"): leaf for name, leaf in checkpoints.read(0, shapes).items()}
        name = next(iter(sorted(params)))
        checkpoints.save(1, {"params": params | {name: params[name] * jnp.nan}})
        checkpoints.close()
    else:
        stored = tensors(directory)
        name = next(iter(sorted(stored)))
        damaged = np.array(stored[name])
        damaged.flat[:2] = np.inf
        save_file(stored | {name: damaged}, f"{path}/model.safetensors")
    with pytest.raises(UserError, match="1 of .* tensors have values that are not finite: .* of .*--allow_nonfinite"):
        convert(Source(path, model=model), Target(str(output)))
    assert not output.exists()
    convert(Source(path, model=model, allow_nonfinite=True), Target(str(output)))
    assert "values that are not finite" in caplog.text and output.exists()


def test_tokenizer_behind_a_link_that_leaves_the_run_is_not_exported(directory, tmp_path):
    run = tmp_path / "run"
    convert(Source(str(directory)), Target(str(run)))
    (tmp_path / "secret.txt").write_text("[PAD]\n[UNK]\n")
    (run / "tokenizer").mkdir(exist_ok=True)
    (run / "tokenizer/vocab.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(UserError, match="vocab.txt: a link that leaves the run directory"):
        convert(Source(str(run), model=BERT), Target(str(tmp_path / "out")))


def test_existing_output_raises(directory, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("data")
    with pytest.raises(ValueError, match="exists and is not empty"):
        convert(Source(str(directory)), Target(str(tmp_path / "full")))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]


def test_truncated_file_raises_and_writes_nothing(directory, tmp_path):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is truncated: tensor"):
        convert(Source(str(directory)), Target(str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("to_run", [True, False])
def test_full_disk_leaves_no_output(to_run, directory, tmp_path, monkeypatch):
    if not to_run:
        convert(Source(str(directory)), Target(str(tmp_path / "run")))
    write = paths.write_atomic

    def full(path, contents):  # of the last file
        if path.endswith("config.gin" if to_run else "config.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, contents)

    monkeypatch.setattr(paths, "write_atomic", full)
    source = Source(str(directory)) if to_run else Source(str(tmp_path / "run"), model=BERT)
    with pytest.raises(RunFailed, match="OUTPUT_PATH=.*out cannot be written: No space left on device. Free space"):
        convert(source, Target(str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_pickled_weights_raise(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "there/pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(ValueError, match="unsupported format of pytorch_model.bin, only safetensors"):
        convert(Source(str(tmp_path / "there")), Target(str(tmp_path / "run")))


def test_run_without_config_raises(tmp_path):
    checkpointer = Checkpoints(str(tmp_path / "run/checkpoints"))
    checkpointer.save(3, {"params": {"model/x": jnp.ones(2)}})
    checkpointer.close()
    with pytest.raises(ValueError, match="missing model. Give it with --gin_file=models"):
        convert(Source(str(tmp_path / "run")), Target(str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("model", "objective", "bos_id"),
    [
        (GPT, CausalLM, 22),
        (dataclasses.replace(GPT, special_tokens=None), CausalLM, None),
        (T5Config(vocab_size=31, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4), SequenceToSequence, 0),
        (BERT, MaskedLM, None),
    ],
    ids=["gpt", "gpt without BOS", "t5", "bert"],
)
def test_stored_config_has_the_usual_objective(tmp_path, model, objective, bos_id):
    (tmp_path / "config.gin").write_text(describe(model))
    resolved = config.load(
        "t5x_like.eval.evaluate",
        files=["commands/eval.gin"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task")],
        run_directory=str(tmp_path),
    )
    loaded = config.arguments(resolved.configured(), without=("data",))["loaded"]
    assert loaded.config == model and type(loaded.objective) is objective
    if objective is CausalLM and bos_id is None:
        assert loaded.features == specs.NEXT_TOKEN
    elif bos_id is not None:
        assert loaded.features.bos_id == bos_id


def test_infer_needs_no_gin_file_for_a_converted_decoder(tmp_path, run_command):
    source, run = str(tmp_path / "source"), str(tmp_path / "run")
    interop.to_huggingface({"model": GPT.make(jax.random.key(0))}, GPT, source)
    convert(Source(source), Target(run))
    (tmp_path / "in.jsonl").write_text('{"inputs": [3, 4, 5]}\n')
    files = [f"--input={tmp_path}/in.jsonl", f"--output={tmp_path}/out.jsonl"]
    lengths = "--gin.TASK_FEATURE_LENGTHS={'inputs': 4, 'targets': 3}"
    code, output = run_command(["infer", f"--gin.MODEL_DIR={run}", *files, lengths, "--gin.BATCH_SIZE=1"])
    assert code == 0, output
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(row["prediction"]) <= 3 and row["log_probability"] < 0


def test_settings_of_generation_are_kept_by_the_run_and_exported(tmp_path):
    source, run, exported = (str(tmp_path / name) for name in ("source", "run", "exported"))
    interop.to_huggingface({"model": GPT.make(jax.random.key(0))}, GPT, source)
    settings = {"num_beams": 3, "length_penalty": 0.5, "eos_token_id": 7}
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps(settings | {"use_cache": True}))
    convert(Source(source), Target(run))
    files = {"files": ["commands/infer.gin"], "bindings": [("INPUT_PATH", "in"), ("OUTPUT_PATH", "out")]}
    derivations = cli_derivations.of_command("infer")
    resolved = config.load("t5x_like.infer.infer", run_directory=run, derivations=derivations, **files)
    assert "BEAMS = 3\n" in resolved.text and "ALPHA = 0.5\n" in resolved.text
    convert(Source(run, model=interop.config_from_huggingface(source)), Target(exported))
    assert json.loads((tmp_path / "exported" / "generation_config.json").read_text()) == settings


def test_description_has_every_field():
    text = describe(T5Config(embed_dim=12, activations=("relu",)))
    assert "from t5x_like.models import t5" in text and "MODEL = @t5.T5Config()" in text
    assert "  embed_dim = 12\n" in text and "  activations = ('relu',)\n" in text


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (None, None),
        (SpecialTokens({"eos_token_id": 7}), 7),
        (SpecialTokens({"eos_token_id": (8, 9)}), 8),
        (SpecialTokens({"eos_token_id": None}, {"eos_token_id": 5}), 5),
    ],
)
def test_eos_is_that_of_generation(tokens, expected):
    assert model_tokens.eos_id(dataclasses.replace(GPT, special_tokens=tokens)) == expected


@pytest.mark.parity
@pytest.mark.parametrize(("added", "padding"), [({}, 22), ({"pad_token": "<pad>"}, 21), ({"pad_token": "<new>"}, 22)])
def test_decoder_with_a_head_classifies_padded_rows(added, padding, tmp_path):
    """The tokenizer's padding is used if the model has its id, or else EOS."""
    import torch
    import transformers

    objective = SequenceClassification(("a", "b", "c"), head=heads.LastToken())
    model = GPT.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    run, exported = tmp_path / "run", tmp_path / "exported"
    checkpoints = Checkpoints(str(run / "checkpoints"))
    checkpoints.save(0, {"params": parameters.stack(parameters.named_leaves(params))})
    checkpoints.close()
    (run / "tokenizer").mkdir()
    tokens = {"21": {"content": "<pad>"}, "22": {"content": "<|endoftext|>"}, "23": {"content": "<new>"}}
    settings = {"eos_token": "<|endoftext|>", "added_tokens_decoder": tokens} | added
    (run / "tokenizer/tokenizer_config.json").write_text(json.dumps(settings))
    (run / "tokenizer/vocab.json").write_text(json.dumps({"<|endoftext|>": 22}))
    convert(Source(str(run), model=GPT), Target(str(exported)))

    reference = transformers.AutoModelForSequenceClassification.from_pretrained(exported)
    assert reference.config.pad_token_id == padding
    inputs, lengths = np.random.default_rng(0).integers(1, 20, (2, 8)), np.array([8, 5])
    valid = np.arange(8) < lengths[:, None]
    arrays = {"inputs": inputs * valid, "targets": np.zeros((2, 1), np.int32)}
    batch = batches.from_arrays(objective.features, arrays, counts={"inputs": lengths})
    with torch.no_grad():
        rows = torch.tensor(np.where(valid, inputs, padding))
        expected = reference(input_ids=rows, attention_mask=torch.tensor(valid)).logits.numpy()
    (predicted,) = forward(objective, params, batch).predictions.values()
    found = predicted.hidden[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
