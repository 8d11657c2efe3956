"""An analysis: how similar the hidden states of neighboring tokens are, by layer."""

import numpy as np

from t5x_like.analysis.base import Section, Table
from t5x_like.errors import UserError


class Neighbors:
    """Measures the mean cosine similarity of neighboring tokens in each layer of an encoder or a decoder.

    Args:
      sentences: Texts; None to leave the analysis out.
    """

    setting = "NEIGHBOR_SENTENCES"

    def __init__(self, *, sentences=None):
        self.sentences = sentences
        self.is_ready = sentences is not None

    def check(self):
        if not self.sentences:
            raise UserError("NEIGHBOR_SENTENCES: no sentence. Give a list of sentences.")

    def run(self, analyzed):
        rows = [analyzed.text_row(self.setting, sentence) for sentence in self.sentences]
        stack = analyzed.loaded.resolved.stacks[analyzed.stacks[0]]
        captures = [f"{analyzed.stacks[0]}/layers/{layer}/hidden" for layer in range(stack.num_layers)]

        def compute(model, batch):
            reads = {name: array for name, array in batch.items() if name in model.config.reads}
            captured = model(reads, capture=captures).captured
            return {name: captured[name] for name in captures}

        totals = np.zeros(len(captures))
        results = analyzed.run(compute, analyzed.model, [row.ids for row in rows], what="sentences")
        for row, states in zip(rows, results, strict=True):
            for layer, name in enumerate(captures):
                vectors = np.asarray(states[name], np.float32)[: len(row.ids)]
                vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
                totals[layer] += np.mean(np.sum(vectors[1:] * vectors[:-1], axis=-1)) / len(rows)
        similarities = totals.tolist()
        table = Table("Similarity", ("layer", "cosine"), list(enumerate(similarities, 1)))
        return Section("Neighbors", "Mean cosine similarity.", [table], data={"cosine": similarities})
