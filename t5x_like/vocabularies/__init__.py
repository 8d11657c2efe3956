"""Vocabularies: what turns text into token ids, the files that they are read from, and their special tokens."""
