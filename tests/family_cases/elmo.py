"""The sizes of ELMo. It has no attention, so the properties of Transformers do not apply to it."""

FAMILIES = {}
PARAMETERS = {
    "elmo/original": 93_600_864,
    "elmo/medium": 28_027_744,
    "elmo/small": 13_593_312,
    "elmo/tiny": 44_920,
}
