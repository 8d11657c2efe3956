"""SpanBERT, whose model is BERT."""

FAMILIES = {}

# Without heads, with the masked-LM head, with the span-boundary head as well.
SPANBERT = {
    "spanbert/tiny": (4_174_080, 4_219_844, 4_327_360),
    "spanbert/base": (107_719_680, 108_340_804, 110_300_480),
    "spanbert/large": (332_529_664, 333_610_308, 336_998_976),
}
PARAMETERS = {name: counts[0] for name, counts in SPANBERT.items()}
