"""The report of the quickstart: a plot of the losses, the held-out loss, and samples of filled-in blanks."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.text import Text

from t5x_like import partitioning, paths
from t5x_like.data.features import BOS_ID, EOS_ID
from t5x_like.data.source import DataSource
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.metrics import read_metrics
from t5x_like.objectives.base import Objective
from t5x_like.reporting.plots import png
from t5x_like.runtime import terminal
from t5x_like.training.evaluation import Evaluator

_PLOT = "loss.png"
# Rows of metrics.jsonl by split, and the label of their curve.
_LABELS = {"train": "training", "validation": "validation"}


def span_corruption(
    *,
    params: Any,
    objective: Objective,
    partitioner: partitioning.Partitioner,
    data: DataSource,
    model_dir: str,
    batches: int = 20,
    samples: int = 3,
) -> dict[str, float]:
    """Plots the losses, compares the held-out loss with a unigram model, and fills in blanks of held-out text.

    Process 0 writes the plot to `loss.png` in the run directory. The two numbers are in nats per target token that is
    neither a sentinel nor EOS. The entropy of the unigram distribution of these tokens is the lowest loss that a model
    without context can have on them.

    Args:
      params: the trained parameters, `{"model": …, "objective": …}`.
      objective: the objective of the training.
      partitioner: the mesh and its rules.
      data: a source of held-out span-corrupted text.
      model_dir: the run directory. Its metrics are plotted.
      batches: maximum number of batches to evaluate.
      samples: number of rows whose blanks are filled in.

    Returns:
      `held_out_loss` and `unigram_entropy`.
    """
    vocabulary = data.vocabularies()["targets"]
    words = _WordsOnly(data, first_sentinel=vocabulary.vocab_size - vocabulary.extra_ids)
    loss = Evaluator(objective, words, partitioner, batches)(params)["loss"]
    entropy = unigram_entropy(
        np.concatenate(
            [
                batch["decoder_target_tokens"][batch["decoder_loss_weights"] > 0]
                for batch in words.eval_batches(objective.features, batches)
            ]
        )
    )
    console = terminal.console(highlight=False)
    if jax.process_index() == 0:
        plot = paths.join(model_dir, _PLOT)
        plot_losses(read_metrics(model_dir), plot, title="Quickstart: span corruption")
        console.print(f"\nplot of the losses: {plot}")
    distance = f"{abs(entropy - loss):.3f} nats {'below' if loss < entropy else 'above'}"
    console.print(
        f"\nheld-out loss {loss:.3f} nats per token, unigram entropy {entropy:.3f}: {distance} "
        "(target tokens that are neither sentinel nor EOS)"
    )
    _print_predictions(console, params["model"], partitioner, data, objective.features, vocabulary, samples)
    return {"held_out_loss": loss, "unigram_entropy": entropy}


def plot_losses(rows: Sequence[Mapping[str, Any]], path: str, *, title: str = "") -> None:
    """Writes the training and validation loss over the steps as a PNG image.

    Args:
      rows: rows of a run's metrics, as `read_metrics` returns them. Rows without a loss are skipped.
      path: file to write, local or in a bucket.
      title: title of the plot.
    """
    # matplotlib takes half a second to import. `Figure` draws without pyplot, so that no display is needed.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for split, label in _LABELS.items():
        points = sorted((row["step"], row["loss"]) for row in rows if row["split"] == split and "loss" in row)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o" if split == "validation" else None, label=label)
    axes.set(title=title, xlabel="step", ylabel="loss (nats per target token)")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    paths.write_atomic(path, png(figure))


def unigram_entropy(tokens: np.ndarray) -> float:
    """Returns the entropy, in nats, of the empirical distribution of `tokens`."""
    counts = np.unique(tokens, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


@dataclasses.dataclass
class _WordsOnly:
    """Evaluation batches in which sentinels and EOS have no loss weight."""

    data: DataSource
    first_sentinel: int

    @property
    def name(self) -> str:
        return self.data.name

    def eval_batches(self, features, batches: int, **processes) -> Iterator[dict[str, np.ndarray]]:
        for batch in self.data.eval_batches(features, batches, **processes):
            targets = batch["decoder_target_tokens"]
            is_word = (targets != EOS_ID) & (targets < self.first_sentinel)
            yield {**batch, "decoder_loss_weights": batch["decoder_loss_weights"] * is_word}


def _print_predictions(console, model, partitioner, data, features, vocabulary, samples):
    """Prints held-out text with numbered blanks, and the predicted and the true text of each blank."""
    index, count = partitioner.feed_shard
    batch = next(iter(data.eval_batches(features, 1, process_index=index, process_count=count)))
    first = batch["encoder_segment_ids"] == 1  # the first example of each packed row
    alone = {name: rows * first for name, rows in batch.items() if name.startswith("encoder")}
    length = batch["decoder_target_tokens"].shape[1]
    decoding = Decoding(max_length=length, eos_ids=(EOS_ID,), bos_id=BOS_ID)
    decode = partitioner.jit(
        lambda model, batch: generate(model, batch, decoding).tokens[:, 0], out_shardings=partitioner.replicated
    )
    rows = len(first)  # of this process
    predicted = jax.device_get(decode(model, partitioner.put_batch(alone)))[index * rows : (index + 1) * rows]
    first_sentinel = vocabulary.vocab_size - vocabulary.extra_ids
    targets = batch["decoder_target_tokens"] * (batch["decoder_segment_ids"] == 1)
    for row in range(min(samples, len(predicted))):
        text = _with_blanks(vocabulary, alone["encoder_input_tokens"][row], first_sentinel)
        console.print(Text(f"\n{text}"))
        truth, guess = (_spans(vocabulary, tokens[row], first_sentinel) for tokens in (targets, predicted))
        for number, expected in enumerate(truth, 1):
            found = guess[number - 1] if number <= len(guess) else ""
            console.print(Text(f"  [{number}] {found!r}   (was {expected!r})"))


def _spans(vocabulary, tokens, first_sentinel) -> list[str]:
    """Returns the text after each sentinel, up to EOS."""
    ids = [int(token) for token in itertools.takewhile(lambda token: token not in (0, EOS_ID), tokens)]
    spans: list[list[int]] = []
    for token in ids:
        if token >= first_sentinel:
            spans.append([])
        elif spans:
            spans[-1].append(token)
    return [vocabulary.decode(span).strip() for span in spans]


def _with_blanks(vocabulary, tokens, first_sentinel) -> str:
    """Returns corrupted text with a numbered blank for each sentinel."""
    pieces, run, blank = [], [], 0
    for token in [int(token) for token in itertools.takewhile(lambda token: token not in (0, EOS_ID), tokens)]:
        if token >= first_sentinel:
            blank += 1
            pieces += [vocabulary.decode(run), f" [{blank}] "]
            run = []
        else:
            run.append(token)
    return "".join([*pieces, vocabulary.decode(run)]).strip()
