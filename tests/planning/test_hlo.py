"""Parsing of optimized HLO and trip counts of loops."""

import textwrap

import pytest

from t5x_like.planning import hlo

LOOP = """\
HloModule jit_f, is_scheduled=true

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %two = s32[]{:T(128)} constant(2)
  %count = s32[]{:T(128)} get-tuple-element(%state), index=0
  %copied = s32[]{:T(128)S(6)} copy(%count)
  %next = s32[]{:T(128)} add(%copied, %two)
  %value = f32[8]{0:T(128)} get-tuple-element(%state), index=1
  ROOT %done = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%next, %value)
}

%condition (state.1: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(LIMIT)
  %state.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %count.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%count.1, %limit), direction=DIRECTION
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %start = s32[]{:T(128)} constant(START)
  %in = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%start, %x)
  %loop = (s32[]{:T(128)}, f32[8]{0:T(128)}) while(%in), condition=%condition, body=%body, metadata={op_name="a"}EXTRA
  ROOT %out = f32[8]{0:T(128)} get-tuple-element(%loop), index=1
}
"""


def trips(start=0, limit=10, direction="LT", extra="", text=LOOP):
    for name, value in {"START": start, "LIMIT": limit, "DIRECTION": direction, "EXTRA": extra}.items():
        text = text.replace(name, str(value))
    module = hlo.parse(text)
    return hlo.trip_count(module, module.entry, module.entry.by_name["loop"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 5),  # 0 2 4 6 8
        ({"limit": 9}, 5),
        ({"start": 3}, 4),  # 3 5 7 9
        ({"direction": "LE"}, 6),  # 0 … 10
        ({"start": 12}, 0),
        ({"extra": ', backend_config={"known_trip_count":{"n":"24"}}'}, 24),
        ({"direction": "NE"}, None),
    ],
)
def test_trip_count(settings, expected):
    assert trips(**settings) == expected


def test_trip_count_is_unknown_if_the_counter_starts_at_an_argument():
    text = LOOP.replace("(%start, %x)", "(%x, %x)")
    assert trips(text=text) is None


def test_parse_instructions():
    module = hlo.parse(
        textwrap.dedent("""\
        ENTRY %main (p: bf16[4,2]) -> (bf16[4,2], f32[3]) {
          %p = bf16[4,2]{1,0:T(8,128)(2,1)S(1)} parameter(0)
          ROOT %f.1 = (bf16[4,2]{1,0:T(8,128)}, /*index=1*/f32[3]{0:T(128)S(5)}) fusion(%p, %p), kind=kLoop, calls=%c
        }
        """)
    )
    root = module.entry.root
    assert (root.name, root.opcode, root.operands, root.called("calls")) == ("f.1", "fusion", ("p", "p"), "c")
    assert [(array.dtype, array.dims, array.bytes, array.memory) for array in root.arrays] == [
        ("bf16", (4, 2), 16, 0),
        ("f32", (3,), 12, 5),
    ]
    assert module.entry.by_name["p"].arrays[0].memory == 1


def test_text_without_entry_raises():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.parse("%a (b: f32[]) -> f32[] {\n}\n")


def test_instruction_over_several_lines():
    """The compiler writes the metadata of a Pallas kernel on lines of its own, which begin with any character."""
    module = hlo.parse(
        textwrap.dedent("""\
        ENTRY %main (x: f32[8]) -> f32[8] {
          %x = f32[8]{0} parameter(0)
          %kernel.1 = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call", attributes={kernel_metadata={
        "xprof_metadata":"{\\"block_q\\": 128}"
        }}, backend_config={"custom_call_config":{"body":"x"}}
          ROOT %out = f32[8]{0} add(%kernel.1, %x)
        }, execution_thread="main"
        """)
    )
    assert [one.name for one in module.entry.instructions] == ["x", "kernel.1", "out"]
    assert '"custom_call_config"' in module.entry.by_name["kernel.1"].attributes
    assert module.entry.root.operands == ("kernel.1", "x")


def test_unknown_dtype_raises():
    assert hlo.Array("f8e4m3", (3, 4)).bytes == 12 and hlo.Array("token", ()).bytes == 0
    with pytest.raises(ValueError, match="dtype f2x of a compiled program: unknown size"):
        hlo.Array("f2x", (3,)).bytes  # noqa: B018
