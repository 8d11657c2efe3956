"""Runs `lm_eval` (EleutherAI's evaluation harness) on a run directory or a Hugging Face directory, without export.

    python -m t5x_like.analysis.lm_eval_model --model=t5x_like --model_args=path=runs/lm --tasks=lambada_openai

The arguments are those of `lm_eval`; those of the model are `path`, `checkpoint`, `batch_size` and `add_bos_token`. It
needs the extra `lm-eval`. From Python, `T5XLike(path="runs/lm")` is a model for `lm_eval.simple_evaluate`.
"""

from typing import Any

from t5x_like import packages
from t5x_like.analysis.scorer import Scorer
from t5x_like.loading import open_model

instance, model, registry = (
    packages.require(f"lm_eval.api.{name}", "t5x_like.analysis.lm_eval_model", extra="lm-eval")
    for name in ("instance", "model", "registry")
)

_MAX_TOKENS = 256


@registry.register_model("t5x_like")
class T5XLike(model.LM):
    """A model of this library for `lm_eval`.

    Args:
      path: A run directory, one of its checkpoints, or a Hugging Face directory.
      checkpoint: Which checkpoint of a run: `latest`, `best`, or a step.
      batch_size: Rows per batch.
      add_bos_token: Whether a decoder reads BOS before a context; None: as its tokenizer does.
      **kwargs: Arguments of the harness that do not apply, such as its device.
    """

    def __init__(
        self,
        path: str,
        checkpoint: str | int = "latest",
        batch_size: int | str = 32,
        add_bos_token: bool | None = None,
        **kwargs: Any,
    ):
        super().__init__()
        self._scorer = Scorer(open_model(path, checkpoint=checkpoint), int(batch_size), add_bos=add_bos_token)

    def loglikelihood(self, requests: list[instance.Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Scores continuations; see `Scorer.loglikelihood`."""
        return self._scorer.loglikelihood([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[instance.Instance], disable_tqdm: bool = False) -> list[float]:
        """Scores whole texts; see `Scorer.loglikelihood_rolling`."""
        return self._scorer.loglikelihood_rolling([request.args[0] for request in requests])

    def generate_until(self, requests: list[instance.Instance], disable_tqdm: bool = False) -> list[str]:
        """Generates text greedily, or samples it with `temperature`; see `Scorer.generate_until`."""
        found = [""] * len(requests)
        groups: dict[tuple, list[int]] = {}
        for index, request in enumerate(requests):
            settings = request.args[1]
            until = settings.get("until", [])
            until = (until,) if isinstance(until, str) else tuple(until)
            temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
            key = until, int(settings.get("max_gen_toks", _MAX_TOKENS)), temperature
            groups.setdefault(key, []).append(index)
        for (until, max_tokens, temperature), indices in groups.items():
            contexts = [requests[index].args[0] for index in indices]
            texts = self._scorer.generate_until(contexts, until=until, max_tokens=max_tokens, temperature=temperature)
            for index, text in zip(indices, texts, strict=True):
                found[index] = text
        return found


if __name__ == "__main__":
    packages.require("lm_eval.__main__", "t5x_like.analysis.lm_eval_model", extra="lm-eval").cli_evaluate()
