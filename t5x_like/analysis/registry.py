"""The analyses that `t5x_like analyze` can run."""

from t5x_like.analysis.base import Analysis


def analyses(**by_name: Analysis) -> dict[str, Analysis]:
    """Returns the analyses by name. The gin file of an analysis adds it: `registry.analyses.NAME = @module.Class()`.

    Args:
      **by_name: Name -> analysis.
    """
    return by_name
