"""Corpora and the files of data sets, as SeqIO sources."""
