"""Metrics of downstream tasks: `metric_fns(targets, predictions)` and the like for `seqio.TaskRegistry.add`.

Those of classification and BLEU are computed by scikit-learn, scipy and sacrebleu, which the extra `eval` installs.
"""
