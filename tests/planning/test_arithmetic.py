"""FLOPs of matrix products that are written as `dot` or, by the TPU compiler, as `convolution`."""

import itertools

import pytest

from t5x_like.planning import arithmetic, hlo


def flops(left: str, right: str, product: str) -> float:
    module = hlo.parse(
        f"ENTRY %main (a: {left}, b: {right}) -> f32[] {{\n"
        f"  %a = {left} parameter(0)\n  %b = {right} parameter(1)\n  ROOT %c = {product}\n}}\n"
    )
    return arithmetic.product_flops(module.entry, module.entry.root)


def test_flops_of_dot():
    dot = "f32[2,3,5] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    assert flops("f32[2,3,7]", "f32[2,7,5]", dot) == 2 * 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("left", "right", "product", "expected"),
    [
        # A matrix product.
        ("bf16[32,256]", "bf16[256,64]", "bf16[32,64] convolution(%a, %b), dim_labels=bf_io->bf", 2 * 32 * 256 * 64),
        # Attention scores of 16 rows and 6 heads. Rows and heads are window dimensions that use only the diagonal.
        (
            "bf16[16,512,6,64]",
            "bf16[16,512,6,64]",
            "f32[16,6,512,512] convolution(%a, %b), window={size=16x6 stride=15x5 lhs_dilate=16x6}, "
            "dim_labels=0b1f_0o1i->01bf",
            2 * 16 * 6 * 512 * 512 * 64,
        ),
        # A projection to 6 heads of size 64 from two halves of 64. Heads are a window that slides over one position.
        (
            "bf16[16,512,2,64,1]",
            "bf16[2,64,6,64,1]",
            "bf16[16,512,6,64,1] convolution(%a, %b), window={size=1x6x2 pad=0_0x5_5x0_0 rhs_reversal=0x1x0}, "
            "dim_labels=0b2f1_2i1o0->0b1f2",
            2 * 16 * 512 * 6 * 64 * 128,
        ),
        # Grouped features: the input features of the kernel belong to one group.
        (
            "f32[8,12]",
            "f32[4,30]",
            "f32[8,30] convolution(%a, %b), dim_labels=bf_io->bf, feature_group_count=3",
            2 * 8 * 30 * 4,
        ),
        # Grouped batches: each group of two rows multiplies 15 of the output features.
        (
            "f32[4,12]",
            "f32[12,30]",
            "f32[2,30] convolution(%a, %b), dim_labels=bf_io->bf, batch_group_count=2",
            2 * 2 * 30 * 12,
        ),
    ],
)
def test_flops_of_convolution(left, right, product, expected):
    assert flops(left, right, product) == expected


def test_windows_count_only_pairs_outside_of_padding():
    sizes = itertools.product((1, 2, 5), (1, 3, 4), (1, 2, 3), (1, 2), (1, 3), (0, 2))
    for size, kernel, stride, dilation, base, low in sizes:
        padded, reach = (size - 1) * base + 1 + 2 * low, (kernel - 1) * dilation + 1
        if padded < reach:
            continue
        out = (padded - reach) // stride + 1
        met = sum(
            0 <= (position := o * stride + k * dilation - low) <= (size - 1) * base and position % base == 0
            for o in range(out)
            for k in range(kernel)
        )
        window = f"{{size={kernel} stride={stride} pad={low}_{low} lhs_dilate={base} rhs_dilate={dilation}}}"
        product = f"f32[1,1,{out}] convolution(%a, %b), window={window}, dim_labels=bf0_io0->bf0"
        assert flops(f"f32[1,1,{size}]", f"f32[1,1,{kernel}]", product) == 2 * met, window


def test_other_instructions_have_no_flops():
    assert flops("f32[4]", "f32[4]", "f32[4] add(%a, %b)") == 0
