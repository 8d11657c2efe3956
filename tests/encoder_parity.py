"""Comparisons of an encoder and its heads with transformers: a pair of both models, and a batch of padded rows."""

import dataclasses

import numpy as np

ROWS, LENGTH, PREDICTIONS = 3, 23, 5


@dataclasses.dataclass
class Pair:
    """The same model and heads in transformers and here, and a batch of padded rows."""

    reference: object
    config: object
    objective: object
    params: dict
    batch: dict

    @property
    def valid(self):
        return self.batch["encoder_segment_ids"] == 1

    def outputs(self):
        rows = np.arange(ROWS)[:, None]
        labels = np.full((ROWS, LENGTH), -100)
        chosen = self.batch["masked_weights"] == 1
        labels[np.broadcast_to(rows, chosen.shape)[chosen], self.batch["masked_positions"][chosen]] = self.batch[
            "masked_targets"
        ][chosen]
        given = {"input_ids": self.batch["encoder_input_tokens"], "attention_mask": self.valid, "labels": labels}
        if "next_sentence_label" in self.batch:
            given |= {
                "token_type_ids": self.batch["token_types"],
                "next_sentence_label": self.batch["next_sentence_label"],
            }
        import torch

        given = {name: torch.tensor(array).long() for name, array in given.items()}
        return self.reference(**given, output_hidden_states=True, output_attentions=True)


def make_batch(rng, hf_config):
    """Returns rows of different lengths, each with up to `PREDICTIONS` masked positions."""
    lengths = np.array([LENGTH, LENGTH - 4, LENGTH - 11])
    tokens = rng.integers(hf_config.pad_token_id + 1, hf_config.vocab_size, (ROWS, LENGTH))
    valid = np.arange(LENGTH) < lengths[:, None]
    predictions = np.array([PREDICTIONS, 1, PREDICTIONS - 2])
    positions = np.zeros((ROWS, PREDICTIONS), np.int64)
    for row in range(ROWS):
        positions[row, : predictions[row]] = np.sort(rng.choice(lengths[row], predictions[row], replace=False))
    weights = np.arange(PREDICTIONS) < predictions[:, None]
    batch = {
        "encoder_input_tokens": np.where(valid, tokens, hf_config.pad_token_id),
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, hf_config.vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
    }
    if hf_config.model_type == "bert":
        batch["token_types"] = rng.integers(0, hf_config.type_vocab_size, (ROWS, LENGTH)) * valid
        batch["next_sentence_label"] = np.array([[0], [1], [1]])
    return {name: array.astype(np.int32) for name, array in batch.items()}
