"""Rollouts: completions that the model samples for prompts within the training step, with their rewards."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.data.roles import make_feature
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.special_tokens import sampling_eos_ids
from t5x_like.objectives import rewards
from t5x_like.objectives.base import Batch
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.samples import place
from t5x_like.recorded import recorded

Group = Float[Array, "batch samples"]


@struct.dataclass
class Rollout:
    """Samples of prompts.

    Attributes:
      rows: The features of a decoder, `[batch * samples, length]`: the prompt, and the sample after it.
      rewards: The reward of each sample; 0 for those of empty prompts.
      truncated: 1 for samples without EOS.
    """

    rows: Batch
    rewards: Group
    truncated: Group


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollouts:
    """How completions are sampled, rewarded and used. A comment above each field documents it.

    A sample depends on the parameters, the step and the number of its prompt alone.

    Raises:
      UserError: A number is not positive.
    """

    # The reward functions.
    rewards: Rewards
    # Number of completions per prompt.
    samples: int = 8
    # Maximum number of tokens of a completion.
    max_length: int = 256
    # Token that ends a completion; None: each EOS of the model's special tokens.
    eos_id: int | None = None
    # Number of updates with the same completions, μ.
    updates: int = 1

    def __post_init__(self):
        if min(self.samples, self.max_length, self.updates) < 1:
            raise UserError(
                f"SAMPLES_PER_PROMPT={self.samples}, SAMPLE_LENGTH={self.max_length}, UPDATES_PER_ROLLOUT="
                f"{self.updates}: not positive. Give such as SAMPLES_PER_PROMPT=8, SAMPLE_LENGTH=256, "
                "UPDATES_PER_ROLLOUT=1."
            )

    def check(self, config: ModelConfig) -> None:
        """Checks that the reward functions exist and that EOS is known.

        Args:
          config: Configuration of the model.

        Raises:
          UserError: A reward function is not found, or EOS is not known.
        """
        self.rewards.load()
        sampling_eos_ids(config.special_tokens, self.eos_id)

    def sample(self, model: Any, batch: Batch, key: jax.Array | None) -> Rollout:
        """Samples completions and calls the reward functions.

        Args:
          model: The model.
          batch: The features `data.conversation_specs.PROMPT` of the global batch.
          key: Random key; None for the most probable completion of each prompt, found greedily.
        """
        counts, answer_counts = (jnp.sum(batch[name], axis=1) for name in ("decoder_segment_ids", "answer_segment_ids"))
        prompts = {name: batch[name] for name in ("decoder_input_tokens", "decoder_segment_ids")}
        number, eos_ids = 1 if key is None else self.samples, sampling_eos_ids(model.config.special_tokens, self.eos_id)
        sampling = Decoding(temperature=0.0 if key is None else 1.0, samples=number).resolve(
            max_length=self.max_length, eos_ids=eos_ids, bos_id=0
        )
        found = generate(model, prompts, sampling, key)
        received = rewards.on_host(
            self.rewards,
            *(prompts["decoder_input_tokens"], counts, found.tokens, found.lengths),
            *(batch["answer_tokens"], answer_counts),
        )
        last = jnp.take_along_axis(found.tokens, jnp.maximum(found.lengths, 1)[..., None] - 1, axis=2)
        truncated = (~jnp.isin(last[..., 0], jnp.asarray(eos_ids))).astype(jnp.float32)
        rows = self._rows(prompts["decoder_input_tokens"], counts, found.tokens, found.lengths)
        return Rollout(rows, received, truncated)

    def _rows(self, prompts: Array, counts: Array, samples: Array, lengths: Array) -> dict[str, Array]:
        """Returns the features of a decoder with a row per sample: the prompt, and the sample after it."""
        number = samples.shape[1]
        tokens = jnp.repeat(jnp.pad(prompts, ((0, 0), (0, self.max_length))), number, axis=0)
        before = jnp.repeat(counts, number)[:, None].astype(jnp.int32)
        count = jnp.where(before > 0, before + lengths.reshape(-1, 1), 0)
        joined = place(tokens, samples.reshape(-1, samples.shape[2]), before, count)
        return {each.name: make_feature(each.role, joined, count, before, 0) for each in specs.PROMPTED.features}
