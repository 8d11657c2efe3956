"""The tokenizers of transformers: a module per kind, with the constant `TOKENIZERS` and perhaps `LAYOUTS`.

They are discovered (`tokenizer_classes`, `sentencepiece_layouts`), also by the command line, so these modules import
vocabularies in the functions that build them.
"""
