"""Damaged files: reading one raises an error that names it, or gives the result of the undamaged file.

`T5X_LIKE_FUZZ_CASES=5000 pytest tests/test_damaged_files.py -n 0` damages more files than the default.
`T5X_LIKE_FUZZ_SEED` is the seed of the first case of each test.
"""

import json
import os

import copying_run
import jax
import pytest
import small_models
from damage import Artefact, check, digest, safetensors_payload

from t5x_like import config, interop, train
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.config.stored import StoredSettings
from t5x_like.data import specs
from t5x_like.data.cached import CachedSource
from t5x_like.interop import model_tokens
from t5x_like.loading import open_model
from t5x_like.partitioning import Partitioner
from t5x_like.report import report
from t5x_like.runtime import run_files
from t5x_like.stored import run_vocabulary
from t5x_like.training import loop, program
from t5x_like.vocabularies.from_folder import from_folder

CASES = int(os.environ.get("T5X_LIKE_FUZZ_CASES", "200"))
SEED = int(os.environ.get("T5X_LIKE_FUZZ_SEED", "0"))
# Part of the cases of each test.
SHARES = {"resume": 5, "load": 5, "report": 1, "cache": 9, "huggingface": 20}
HUGGING_FACE = ("bert", "gpt2", "bart", "t5", "llama")


def cases(name, tests=1):
    return max(1, CASES * SHARES[name] // sum(SHARES.values()) // tests)


# ---- run directories -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Returns the settings of a small run with a tokenizer."""
    tokenizer = tmp_path_factory.mktemp("tokenizer") / "bert"
    small_models.write_bert(tokenizer)
    (tokenizer / "model.safetensors").unlink()
    changes = {"total": 4, "save": 2, "evaluate": 2, "vocabulary_path": str(tokenizer)}
    return {**changes, "partitioner": Partitioner(devices=jax.devices()[:1], ici={"data": 1}), "patience": 9}


@pytest.fixture(scope="module")
def run_directory(settings, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    copying_run.run(directory, **settings)
    return directory


@pytest.fixture
def resume(settings, run_directory, monkeypatch):
    """Returns a function that resumes a run up to its first step, without compiling."""

    class WithoutCompilation(program.Program):
        def compile(self):
            return iter(())

    made = vars(program.make_program(copying_run.recipe("", **settings)))
    monkeypatch.setattr(train, "make_program", lambda recipe: WithoutCompilation(**made))
    monkeypatch.setattr(
        loop, "run_steps", lambda program, start, feed, **rest: loop.LoopResult(start.state, feed.state(), None, {})
    )
    monkeypatch.setattr(train.run_directory, "describe_end", lambda *arguments: "")
    text = (run_directory / "config.gin").read_text()

    def read(directory):
        recipe = copying_run.recipe(directory, **settings | {"total": 6})
        result = train.train(recipe, run_config=train.run_directory.RunConfig(text))
        return result.step, digest(result.params)

    return read


@pytest.mark.full
def test_resumed_run(resume, run_directory, tmp_path):
    # A changed value in metrics.jsonl is a warning: training does not depend on it.
    texts = ("config.gin", "metrics.jsonl", "log.txt", "model_info.txt")
    check(Artefact(run_directory, resume, texts), cases("resume"), SEED, tmp_path)


@pytest.mark.full
def test_loaded_run(run_directory, tmp_path):
    original = (run_directory / "config.gin").read_text()
    partitioner = Partitioner(devices=jax.devices()[:1], ici={"data": 1})

    def read(directory):
        if not run_files.is_run(str(directory)):
            raise run_files.not_a_run("MODEL_DIR", str(directory))
        text, settings = (directory / "config.gin").read_bytes(), StoredSettings.read(str(directory))
        shown = {name: settings.shown(settings.value(name)) for name in ("model", "objective", "optimizer")}
        config.differences(text.decode(errors="replace"), original, free=())
        vocabulary = run_vocabulary.load(str(directory)), run_vocabulary.read_digest(str(directory))
        (path,) = checkpoint_choice.choose(str(directory), "best")
        return (
            shown,
            vocabulary,
            digest(open_model(path, model=copying_run.CONFIG, partitioner=partitioner).read_model()),
        )

    artefact = Artefact(run_directory, read, ("config.gin",), removable=("vocabulary.json",))
    check(artefact, cases("load"), SEED, tmp_path)


@pytest.mark.full
def test_report(run_directory, tmp_path):
    def read(directory):
        report(model_dirs=str(directory), output=str(tmp_path / "report.html"))

    check(Artefact(run_directory, read), cases("report"), SEED, tmp_path)


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify_checksums", [False, True])
def test_cache(write_cache, tmp_path, verify_checksums):
    write_cache(tmp_path / "cache/train", lengths={"inputs": 6, "targets": 4}, shards=((0, 7), (1, 5)))

    def read(directory):
        source = CachedSource(cache_dir=str(directory), batch_size=4, verify_checksums=verify_checksums)
        batches = [*source.eval_batches(specs.ENCODER_DECODER)]
        iterator = source.host_iterator(specs.ENCODER_DECODER)
        batches += [next(iterator) for _ in range(3)]
        kind = source.vocabulary_kind(specs.ENCODER_DECODER)
        return digest(batches), iterator.state(), source.describe(), kind, source.add_eos()

    check(Artefact(tmp_path / "cache", read), cases("cache", 2), SEED, tmp_path)


# ---- published models ------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("family", HUGGING_FACE)
def test_hugging_face(family, tmp_path):
    getattr(small_models, f"write_{family}")(tmp_path / family)
    model = interop.config_from_huggingface(str(tmp_path / family))
    (tmp_path / family / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "max_length": 20}))

    def read(directory):
        path = str(directory)
        interop.config_from_huggingface(path), interop.task_head(path), model_tokens.generation_settings(path)
        weights = digest(interop.read(path, model))
        vocabulary = from_folder(path)
        return weights, vocabulary.encode("a test of text"), vocabulary.decode([3, 4, 5]), vocabulary.vocab_size

    texts = {path.name for path in (tmp_path / family).iterdir()} - {"model.safetensors"}
    artefact = Artefact(tmp_path / family, read, texts, payload=safetensors_payload)
    check(artefact, cases("huggingface", len(HUGGING_FACE)), SEED, tmp_path)
