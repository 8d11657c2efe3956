"""ETC is fine-tuned by the command line with a global token per sentence, for classification and question answering."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model
from objective_cases import CASES, terms_of

from t5x_like.data import batches
from t5x_like.metrics import read_metrics
from t5x_like.objectives import heads, passes
from t5x_like.objectives.heads.global_tokens import TaskSentences
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.span_extraction import SpanExtraction

pytestmark = pytest.mark.full

SIZES = {"embed_dim": 8, "mlp_dim": 8, "head_dim": 4, "vocab_size": 64, "local_radius": 2}
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h i j . ?".split()
TEXTS = ["a b. C d e. F", "g h? I j", "b c d? E f. G", "h. I. J a"] * 4


def classification_data(directory):
    rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(TEXTS))
    for split in ("train", "dev"):
        (directory / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)


def question_data(directory):
    answers = {"text": ["e"], "answer_start": [9]}
    rows = [{"id": str(n), "question": "c?", "context": "a b. C d e. F", "answers": answers} for n in range(16)]
    for split in ("train", "validation"):
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def candidates_data(directory):
    supports = ["a b. C d e. F", "g h? I j"]
    rows = [{"id": str(n), "query": "c ?", "candidates": ["a", "b c", "j"], "answer": "j"} for n in range(16)]
    for split in ("train", "dev"):
        (directory / f"{split}.json").write_text(json.dumps([row | {"supports": supports} for row in rows]))


@pytest.mark.parametrize(
    ("recipe", "task", "write"),
    [
        ("finetune_bigbird_etc", "glue_sst2_global_sentences", classification_data),
        ("finetune_bigbird_etc_squad", "squad_v1_global_sentences", question_data),
        ("finetune_bigbird_etc_candidates", "wikihop_candidates", candidates_data),
    ],
)
def test_sentences_reach_the_model(recipe, task, write, tmp_path, run_command):
    write(tmp_path)
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary/vocab.txt").write_text("\n".join(PIECES) + "\n")
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tmp_path / "vocabulary/tokenizer_config.json").write_text(json.dumps(tokenizer))
    run = tmp_path / "run"
    words = ["train", "--gin_file=models/bigbird_etc/tiny.gin", f"--gin_file=runs/{recipe}.gin"]
    words += [f"--gin.MODEL_DIR={run}", f"--gin.MIXTURE_OR_TASK_NAME={task}", "--gin.INITIAL_CHECKPOINT_PATH=None"]
    words += [f"--gin.TASK_ARGUMENTS={{'data_dir': '{tmp_path}'}}", f"--gin.VOCABULARY_PATH={tmp_path}/vocabulary"]
    words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 80, 'global_positions': 8}", "--gin.BATCH_SIZE=8"]
    words += ["--gin.TRAIN_EPOCHS=None", "--gin.TRAIN_STEPS=3", "--gin.WARMUP_STEPS=1", "--gin.EVAL_PERIOD=3"]
    words += [f"--gin.t5x_like.models.bigbird_etc.EtcConfig.{field}={size}" for field, size in SIZES.items()]
    code, output = run_command(words)
    assert code == 0, output
    rows = read_metrics(str(run))
    losses = [row["loss"] for row in rows if row["split"] == "train"]
    assert losses and np.isfinite(losses).all()
    assert any(row["split"] != "train" for row in rows)


@pytest.mark.parametrize(
    ("make", "form", "targets"),
    [
        (lambda head: SequenceClassification(("no", "yes"), head=head), heads.PooledFirstToken(), [[1], [0]]),
        (lambda head: SpanExtraction(head=head), heads.EachToken(dropout_rate=0.0), [[2, 3], [4, 5]]),
    ],
)
def test_loss_and_gradient_depend_on_the_sentences(make, form, targets):
    objective = make(TaskSentences(form=form))
    config = dataclasses.replace(FAMILIES["etc"].config, local_radius=1)
    model = random_model(config)
    head = jax.tree.map(lambda leaf: 20 * leaf, objective.init(jax.random.key(0), model))
    params = {"model": model, "objective": head}
    rows = {"inputs": np.array([[2, 7, 8, 9, 10, 3, 0], [2, 7, 8, 3, 0, 0, 0]]), "targets": np.array(targets)}
    rows["token_types"] = np.zeros_like(rows["inputs"])

    @jax.jit
    def loss_and_gradient(batch):
        return jax.value_and_grad(
            lambda params: passes.loss(passes.forward(objective, params, batch), objective.coefficients)[0]
        )(params)

    found = []
    for positions in ([[1, 3], [1, 0]], [[1, 2], [2, 0]]):
        batch = batches.from_arrays(objective.features, rows | {"global_positions": np.array(positions)})
        assert batch["global_segment_ids"].tolist() == [[1, 1], [1, 0]]
        found.append(loss_and_gradient(batch))
    (first, gradient), (second, _) = found
    assert abs(first - second) > 1e-5
    of_globals = gradient["model"].encoder.layers[0].attention.global_out.kernel[...]
    assert np.abs(of_globals).max() > 1e-5


@pytest.mark.parametrize("name", ["classification", "tagging", "multiple choice"])
def test_blocks_of_tokens_have_global_tokens_in_tasks_without_sentences(name):
    case = dataclasses.replace(CASES[name], family="etc", layers=2)
    params, batch = case.params(tokens_per_global=3, local_radius=1), case.batch()
    total = jax.jit(jax.value_and_grad(lambda params: sum(terms_of(case.objective, params, batch).sums.values())))
    loss, gradient = total(params)
    of_globals = np.abs(gradient["model"].encoder.layers[0].attention.global_out.kernel[...]).max()
    assert np.isfinite(loss) and 0 < of_globals < np.inf
