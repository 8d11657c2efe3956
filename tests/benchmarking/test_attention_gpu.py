"""The comparison of attention kernels on a GPU, with XLA's attention in their place."""

import attention_gpu
import pytest


@pytest.mark.parametrize("options", [{"causal": True, "packed": True}, {"biased": True}, {"dropout_rate": 0.1}])
def test_line_has_times_and_rates(options):
    case = attention_gpu.Case(2, 32, 2, 2, 8, **options)
    name, backend, *numbers = attention_gpu.line("tiny", case, "xla").strip("| ").split(" | ")
    assert (name, backend) == ("tiny", "xla") and all(float(number) >= 0 for number in numbers) and len(numbers) == 4


def test_flops_count_visible_scores():
    case = attention_gpu.Case(2, 32, 4, 2, 8, causal=True)
    assert case.flops(attention_gpu.FORWARD) == 2 * 2 * (2 * 4 * 32 * 32 / 2) * 8


def test_backend_that_does_not_compute_a_case_has_no_line():
    assert attention_gpu.line("tiny", attention_gpu.Case(2, 32, 2, 2, 8, biased=True), "cudnn") is None
