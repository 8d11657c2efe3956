"""The reader of DrQA (Chen et al. 2017, arXiv:1704.00051, section 3.2) as a head on features.

With the features E(q₁), …, E(qₘ) of a question and E(p₁), …, E(pₙ) of a passage, α a dense layer with relu, and the
softmaxes over the question:

    aᵢⱼ = softmaxⱼ(α(E(pᵢ)) · α(E(qⱼ)));  aligned(pᵢ) = Σⱼ aᵢⱼ E(qⱼ);  match(pᵢ) = 1 if pᵢ is a token of the question
    p₁, …, pₙ = RNN([E(pᵢ); match(pᵢ); aligned(pᵢ)]);  q = Σⱼ softmaxⱼ(w · qⱼ) qⱼ, where q₁, …, qₘ = RNN(E(qⱼ))
    start(i) = pᵢ W_start q;  end(i) = pᵢ W_end q.

An RNN has several bidirectional layers, whose states are concatenated. DrQA has no score of no answer: here it is a
learned number, the logit of the first position for start and end (Levy et al. 2017, arXiv:1706.04115, section 4).
"""

import dataclasses
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.decoding.spans import NULL_POSITION
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.bidirectional import BidirectionalRNN, Cells, Inputs, LSTMCells, States
from t5x_like.objectives.heads import Hidden, check_rate
from t5x_like.objectives.heads.head_modules import Logits
from t5x_like.objectives.heads.pair_attention import attend
from t5x_like.objectives.heads.text_ids import TokenTypes
from t5x_like.objectives.span_extraction import MASKED

_TEXTS = TokenTypes()


class QuestionAndPassage(NamedTuple):
    """What a `DrQAHead` reads.

    Attributes:
      hidden: Features of all tokens.
      tokens: Ids of the tokens.
      text_ids: 0 for the question, 1 for the passage, other numbers for other tokens.
    """

    hidden: Hidden
    tokens: Int[Array, "batch length"]
    text_ids: Int[Array, "batch length"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrQA:
    """DrQA's reader, a form of a head for `SpanExtraction`.

    The question has the token type 0 and the passage the token type 1, as for WordPiece and vocabularies of words. Of
    the paper's further features of a token, only the exact match of its id is read: lemmas, parts of speech, entities
    and term frequencies are not part of a task.
    """

    each_token = True
    inputs = _TEXTS.inputs
    pretrained = types.MappingProxyType({})

    # The cells: `bidirectional.LSTMCells()` or `bidirectional.GRUCells()`.
    cells: Cells = LSTMCells()
    # Number of layers of both networks.
    num_layers: int = 3
    # Size of the states of a layer, per direction.
    size: int = 128
    # Dropout rate of the features and of what each layer reads.
    dropout_rate: float = 0.3

    def __post_init__(self):
        for name in ("num_layers", "size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} of DrQA is not positive. Give a positive integer.")
        check_rate("dropout_rate", self.dropout_rate, "DrQA")

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> "DrQAHead":
        """Creates the head; see `HeadForm.make`.

        Raises:
          UserError: The objective needs other outputs than start and end.
        """
        if outputs != 2:
            raise UserError(f"HEAD=@drqa_head.DrQA(): has 2 outputs, not {outputs}. Give it to SpanExtraction.")
        return DrQAHead(self, config, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> QuestionAndPassage:
        """Returns the features and ids of all tokens; see `HeadForm.read`."""
        return QuestionAndPassage(hidden, batch["encoder_input_tokens"], _TEXTS.of_tokens(batch))


class DrQAHead(nnx.Module):
    """The modules of `DrQA`.

    Args:
      form: The form of the head.
      config: Configuration of the model.
      key: Random key for the initial values.

    Attributes:
      align: Dense layer α, with kernel `[embed, embed]` and bias.
      passage: Network that reads the passage.
      question: Network that reads the question.
      weights: Projection w of the states of the question, with kernel `[states, 1]`.
      start: Projection W_start of the vector of the question, with kernel `[states, states]`.
      end: Projection W_end.
      no_answer: Logit of the first position.
    """

    def __init__(self, form: DrQA, config: HeadConfig, *, key: jax.Array):
        align_key, passage_key, question_key, weights_key, start_key, end_key = jax.random.split(key, 6)
        dtype, embed, states = config.compute_dtype, config.embed_dim, 2 * form.size * form.num_layers

        def projection(inputs, outputs, key, axes, bias=False, dtype="float32"):
            options = {"init": initializers.glorot_uniform, "bias": bias, "dtype": dtype, "has_dropout_key": False}
            return Projection((inputs,), (outputs,), axes=axes, key=key, **options)

        self.dropout = Dropout(form.dropout_rate)
        self.align = projection(embed, embed, align_key, ("embed", "mlp"), bias=True, dtype=dtype)
        self.passage = StackedRNN(form, 2 * embed + 1, dtype=dtype, key=passage_key)
        self.question = StackedRNN(form, embed, dtype=dtype, key=question_key)
        self.weights = projection(states, 1, weights_key, ("embed", None))
        self.start = projection(states, states, start_key, ("embed", "mlp"))
        self.end = projection(states, states, end_key, ("embed", "mlp"))
        self.no_answer = nnx.Param(jnp.zeros(()), axes=())

    def __call__(self, read: QuestionAndPassage, dropout_key: jax.Array | None = None) -> Logits:
        """Computes the logits of start and end in float32, `MASKED` outside of the passage; see `HeadModule`."""
        input_key, passage_key, question_key = split_key(dropout_key, 3)
        tokens, is_question, is_passage = read.tokens, read.text_ids == 0, read.text_ids == 1
        x = self.dropout(read.hidden, input_key)
        visible = is_passage[:, :, None] & is_question[:, None]
        projected = jax.nn.relu(self.align(x))
        aligned = attend(projected, projected, x, visible)
        match = jnp.any(visible & (tokens[:, :, None] == tokens[:, None]), axis=2, keepdims=True).astype(x.dtype)
        passage = self.passage(jnp.concatenate([x, match, aligned], axis=-1), is_passage, dropout_key=passage_key)
        question = self._vector(self.question(x, is_question, dropout_key=question_key), is_question)
        scores = [jnp.einsum("ble,bne->bl", passage, each(question)) for each in (self.start, self.end)]
        logits = jnp.where(is_passage[..., None], jnp.stack(scores, axis=-1), MASKED)
        is_null = jnp.arange(tokens.shape[1]) == NULL_POSITION
        return jnp.where(is_null[:, None], self.no_answer.get_value(), logits)

    def _vector(self, states: States, is_question: Bool[Array, "batch length"]) -> Float[Array, "batch 1 states"]:
        """Returns the mean of the states of the question, weighted by a softmax of their projections."""
        shares = jax.nn.softmax(jnp.where(is_question[..., None], self.weights(states), MASKED), axis=1)
        return jnp.einsum("bln,ble->bne", shares, states)


class StackedRNN(nnx.Module):
    """Bidirectional layers, each of which reads the states of the layer before; the states of all are concatenated.

    Args:
      form: The form of the head.
      inputs: Size of the inputs.
      dtype: Dtype of the products.
      key: Random key for the initial values.

    Attributes:
      layer_0: The first layer; `layer_1`, … follow.
    """

    def __init__(self, form: DrQA, inputs: int, *, dtype: str, key: jax.Array):
        self.num_layers, self.dropout = form.num_layers, Dropout(form.dropout_rate)
        for number in range(form.num_layers):
            sizes, layer_key = (2 * form.size if number else inputs, form.size), jax.random.fold_in(key, number)
            layer = BidirectionalRNN(form.cells, *sizes, dtype=dtype, key=layer_key)
            setattr(self, f"layer_{number}", layer)

    def __call__(
        self, x: Inputs, is_read: Bool[Array, "batch length"], *, dropout_key: jax.Array | None = None
    ) -> States:
        """Returns the states of all layers in float32.

        Args:
          x: Inputs.
          is_read: The tokens that are read; others are skipped.
          dropout_key: Random key; None disables dropout.
        """
        found, segments = [], is_read.astype(jnp.int32)
        for number, key in enumerate(split_key(dropout_key, self.num_layers)):
            x = getattr(self, f"layer_{number}")(self.dropout(x, key), segments)
            found.append(x.astype(jnp.float32))
        return jnp.concatenate(found, axis=-1)
