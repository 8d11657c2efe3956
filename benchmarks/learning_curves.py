"""Trains small models with this library and with transformers on the same batches, and compares their learning curves.

python benchmarks/learning_curves.py
python benchmarks/learning_curves.py --models bert t5 --steps 300 --json curves.json --plot curves.png

BERT, ModernBERT, GPT-2 and T5 1.1 start from the same weights, which this library exports and transformers loads, and
see the same batches of the Python documentation, without dropout. Both train in float32 with AdamW at a constant
learning rate after a linear warmup; the torch side has a loss and an optimizer of torch alone. The table has the loss
at some steps, the means of the last steps, and the largest distance of the two curves.

ELECTRA draws samples of its generator, so its networks start from different weights with the same distribution, and the
curves agree up to chance. The entropy of the labels is the loss of a discriminator that knows their rate alone.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
import transformers

from t5x_like import interop, optimizers
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.modernbert import ModernBertConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Periods, Recipe

ROWS, STEPS, LEARNING_RATE, WARMUP = 16, 1000, 1e-3, 100
SHOWN = (1, 10, 100, 300, 1000, 3000)
LAST = 50  # steps of which the final loss is the mean
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 64, 3, 2, 64, 1100
SIZES = {"vocab_size": VOCABULARY, "embed_dim": WIDTH, "num_heads": HEADS, "head_dim": WIDTH // HEADS}
NO_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
COEFFICIENT = 50.0  # of ELECTRA's discriminator

Batch = Mapping[str, np.ndarray]
Losses = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its objective and its data.

    Attributes:
      config: The model.
      objective: The objective.
      task: A task.
      lengths: Lengths of its features.
      classes: Class of transformers, and a function of its model and a batch of tensors that returns the loss.
    """

    config: Any
    objective: Any
    task: str
    lengths: dict[str, int]
    classes: tuple[str, Callable] | None = None

    def batches(self) -> Iterator[Batch]:
        """Returns the batches, the same in each call."""
        source = SeqIOSource(
            mixture_or_task_name=self.task, task_feature_lengths=self.lengths, batch_size=ROWS, pack=False, seed=0
        )
        return source.host_iterator(self.objective.features)


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=0)


def _masked_lm(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    inputs = batch["encoder_input_tokens"]
    logits = model(input_ids=inputs, attention_mask=(inputs > 0).long()).logits
    positions = batch["masked_positions"].long()
    return _cross_entropy(torch.take_along_dim(logits, positions[..., None], 1), batch["masked_targets"])


def _causal_lm(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return _cross_entropy(model(input_ids=batch["decoder_input_tokens"]).logits, batch["decoder_target_tokens"])


def _sequence_to_sequence(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    inputs = batch["encoder_input_tokens"]
    logits = model(
        input_ids=inputs, attention_mask=(inputs > 0).long(), decoder_input_ids=batch["decoder_input_tokens"]
    ).logits
    return _cross_entropy(logits, batch["decoder_target_tokens"])


_BERT = BertConfig(
    **SIZES, **NO_DROPOUT, mlp_dim=4 * WIDTH, num_layers=LAYERS, max_length=LENGTH, activations=("gelu_exact",)
)
_MASKED = {"inputs": LENGTH, "targets": 10}
CASES = {
    "bert": Case(_BERT, MaskedLM(), "python_docs_masked_lm", _MASKED, ("BertForMaskedLM", _masked_lm)),
    "modernbert": Case(
        ModernBertConfig(**SIZES, **NO_DROPOUT, mlp_dim=3 * WIDTH // 2, num_layers=LAYERS),
        MaskedLM(),
        "python_docs_modernbert",
        {"inputs": LENGTH, "targets": 38},
        ("ModernBertForMaskedLM", _masked_lm),
    ),
    "gpt2": Case(
        GPTConfig(**SIZES, **NO_DROPOUT, mlp_dim=4 * WIDTH, num_layers=LAYERS, max_length=LENGTH),
        CausalLM(),
        "python_docs_causal_lm",
        {"targets": LENGTH},
        ("GPT2LMHeadModel", _causal_lm),
    ),
    "t5": Case(
        T5Config(**SIZES, dropout_rate=0.0, mlp_dim=2 * WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS),
        SequenceToSequence(z_loss=0.0),
        "python_docs_span_corruption",
        {"inputs": LENGTH, "targets": 20},
        ("T5ForConditionalGeneration", _sequence_to_sequence),
    ),
    "electra": Case(_BERT, ReplacedTokenDetection(token_types=False), "python_docs_replaced_tokens", _MASKED),
}


# ---- this library ----------------------------------------------------------------------------------------------------


class _Shapes:
    """A data source that only has the shapes of its batches."""

    def __init__(self, batch: Batch):
        self._batch = batch

    def batch_shapes(self, spec):
        return {name: array.shape for name, array in self._batch.items()}


def train_ours(case: Case, steps: int, seed: int, export: str | None) -> Losses:
    """Trains with this library.

    Args:
      case: The model.
      steps: Number of steps.
      seed: Seed of the initial weights.
      export: Directory in which the initial weights are written for transformers.

    Returns:
      Name -> loss of each step: `loss`, and for ELECTRA `masked_lm`, `replaced_tokens` and `entropy`.
    """
    batches = case.batches()
    first = next(batches)
    recipe = Recipe(
        model=case.config,
        objective=case.objective,
        optimizer=optimizers.adamw(
            learning_rate=schedules.constant(LEARNING_RATE, warmup_steps=WARMUP), weight_decay=0.0
        ),
        data=_Shapes(first),
        periods=Periods(total=steps),
        partitioner=Partitioner(devices=jax.devices()[:1]),
        seed=seed,
    )
    program = make_program(recipe)
    state, frozen = program.init(jax.random.key(seed))
    if export:
        interop.to_huggingface(jax.device_get(state.params), case.config, export)
    losses: Losses = {}
    for batch in itertools.islice(itertools.chain([first], batches), steps):
        state, metrics = program.train_step(state, frozen, program.partitioner.put_batch(batch, program.batch_axes))
        for name, value in _of_metrics(jax.device_get(metrics)).items():
            losses.setdefault(name, []).append(value)
    return losses


def _of_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    means = {name: float(total / weight) for name, (total, weight) in metrics.items() if np.ndim(total) == 0}
    if "masked_lm_loss" not in means:
        return {"loss": means["loss"]}
    rate = means["replaced"]
    return {"masked_lm": means["masked_lm_loss"], "replaced_tokens": means["loss"], "entropy": entropy(rate)}


def entropy(rate: float) -> float:
    """Returns the entropy of a label with a probability, in nats."""
    return -sum(p * np.log(p) for p in (rate, 1 - rate) if p > 0)


# ---- transformers ----------------------------------------------------------------------------------------------------


def train_theirs(case: Case, steps: int, seed: int, export: str | None) -> Losses:
    """Trains with transformers and torch, from the exported weights; ELECTRA from its own. See `train_ours`."""
    torch.manual_seed(seed)
    if case.classes is None:
        networks, loss_of = _electra(case.config)
    else:
        name, loss = case.classes
        networks = getattr(transformers, name).from_pretrained(export, pad_token_id=0)
        loss_of = lambda model, batch: (loss(model, batch), {})  # noqa: E731
    networks.train()
    optimizer = torch.optim.AdamW(networks.parameters(), LEARNING_RATE, weight_decay=0.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / WARMUP))
    losses: Losses = {}
    for batch in itertools.islice(case.batches(), steps):
        tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in batch.items()}
        optimizer.zero_grad()
        total, found = loss_of(networks, tensors)
        total.backward()
        optimizer.step()
        warmup.step()
        for name, value in (found or {"loss": total.item()}).items():
            losses.setdefault(name, []).append(value)
    return losses


def _electra(config: BertConfig) -> tuple[torch.nn.ModuleDict, Callable]:
    """Returns ELECTRA's networks, whose generator has a quarter of the width and the same embeddings, and the loss."""
    shared = {"vocab_size": VOCABULARY, "embedding_size": WIDTH, "max_position_embeddings": LENGTH}
    shared |= {"num_hidden_layers": LAYERS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def sizes(width, heads):
        return {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": heads}

    model = transformers.ElectraForPreTraining(transformers.ElectraConfig(**shared, **sizes(WIDTH, HEADS)))
    generator = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**shared, **sizes(WIDTH // 4, 1)))
    generator.electra.embeddings = model.electra.embeddings
    generator.generator_lm_head.weight = model.electra.embeddings.word_embeddings.weight

    def loss(networks, batch):
        inputs, positions = batch["encoder_input_tokens"].long(), batch["masked_positions"].long()
        targets, real = batch["masked_targets"].long(), (inputs > 0).long()
        logits = networks["generator"](input_ids=inputs, attention_mask=real).logits
        logits = torch.take_along_dim(logits, positions[..., None], 1)
        masked_lm = _cross_entropy(logits, targets)
        sampled = torch.distributions.Categorical(logits=logits.detach()).sample()
        is_masked = targets > 0
        rows = torch.arange(len(inputs))[:, None].expand_as(positions)[is_masked]
        read, labels = inputs.clone(), torch.zeros(inputs.shape)
        read[rows, positions[is_masked]] = sampled[is_masked]
        labels[rows, positions[is_masked]] = (sampled != targets)[is_masked].float()
        scores = networks["model"](input_ids=read, attention_mask=real).logits
        weights = real.float()
        replaced = F.binary_cross_entropy_with_logits(scores, labels, weight=weights, reduction="sum") / weights.sum()
        rate = (labels.sum() / weights.sum()).item()
        found = {"masked_lm": masked_lm.item(), "replaced_tokens": replaced.item(), "entropy": entropy(rate)}
        return masked_lm + COEFFICIENT * replaced, found

    return torch.nn.ModuleDict({"model": model, "generator": generator}), loss


# ---- table -----------------------------------------------------------------------------------------------------------


def rows_of(model: str, ours: Losses, theirs: Losses) -> list[str]:
    """Returns lines of the table."""
    lines = []
    steps = [step for step in SHOWN if step <= len(next(iter(ours.values())))]
    for name in ours:
        for library, losses in (("t5x_like", ours[name]), ("transformers", theirs[name])):
            cells = [*(f"{losses[step - 1]:.4f}" for step in steps), f"{statistics.fmean(losses[-LAST:]):.4f}"]
            distance = np.abs(np.subtract(ours[name], theirs[name]))
            cells.append(f"{distance.max():.1e} at step {distance.argmax() + 1}" if library == "t5x_like" else "")
            lines.append(f"| {model}, {name} | {library} | {' | '.join(cells)} |")
    return lines


def draw(found: Mapping[str, Mapping[str, Losses]], file: str) -> None:
    """Draws the curves of both libraries, and below them their distance.

    Args:
      found: Model -> library -> name of the loss -> a loss per step.
      file: The picture.
    """
    from matplotlib import pyplot as plt

    panels = [(model, name) for model, losses in found.items() for name in losses["t5x_like"]]
    figure, axes = plt.subplots(
        2, len(panels), figsize=(3 * len(panels), 4), sharex="col", height_ratios=(2, 1), squeeze=False
    )
    for (model, name), (above, below) in zip(panels, axes.T, strict=True):
        ours, theirs = (found[model][library][name] for library in ("t5x_like", "transformers"))
        above.plot(theirs, color="#dd8452", linewidth=2, label="transformers")
        above.plot(ours, color="#1f4e79", linewidth=0.6, label="t5x_like")
        above.set_title(model if len(found[model]["t5x_like"]) == 1 else f"{model}, {name}")
        below.semilogy(np.abs(np.subtract(ours, theirs)), color="#777777", linewidth=0.5)
        below.set_xlabel("step")
    axes[0, 0].set_ylabel("loss (nats)")
    axes[1, 0].set_ylabel("distance")
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Trains the models and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file for the losses of all steps")
    parser.add_argument("--plot", help="file for a picture of the curves, such as curves.png")
    arguments = parser.parse_args()
    import data_tasks.shipped_tasks  # noqa: F401  registers the tasks

    found = {}
    shown = [step for step in SHOWN if step <= arguments.steps]
    columns = ["model", "library", *(f"step {step}" for step in shown), f"last {LAST}", "largest distance"]
    print(f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), sep="\n")
    for name in arguments.models:
        case, started = CASES[name], time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            export = directory if case.classes else None
            ours = train_ours(case, arguments.steps, arguments.seed, export)
            theirs = train_theirs(case, arguments.steps, arguments.seed, export)
        found[name] = {"t5x_like": ours, "transformers": theirs}
        print(*rows_of(name, ours, theirs), sep="\n", flush=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(found))
    if arguments.plot:
        draw(found, arguments.plot)


if __name__ == "__main__":
    main()
