"""The commands that work on text and need no model."""

from t5x_like.cli.command import LENGTHS, MODULE, Command

COMMANDS = {
    "inspect": Command(
        "t5x_like.inspect_task.inspect",
        "show the model's inputs for a task",
        "commands/inspect.gin",
        positional=("MIXTURE_OR_TASK_NAME", "TASK"),
        flags={
            "split": ("SPLIT", "split to read (default: train)"),
            "examples": ("NUM_EXAMPLES", "number of rows to print (default: 2)"),
            "find": ("FIND", "a part of a row: print file, record, URL and date of the documents with this text"),
            "row": ("ROW", "a row of CACHE_DIR: print its text, and file, record, URL and date of its documents"),
        },
        text_flags=("find",),
        settings=MODULE
        | {
            "DATA_FILES": "files of a text_files_* task, such as 'data/*.parquet'",
            "TASK_ARGUMENTS": "arguments of the task, such as \"{'lines_per_document': 8}\"",
        }
        | LENGTHS
        | {
            "PACK": "whether to pack several examples into a row",
            "FEATURES": "name of a feature spec, such as PREFIX_LM (default: derived from the task)",
            "CACHE_DIR": "a cache that was written with PROVENANCE, for --row",
        },
        needs_run=True,
        run_macros=("SEPARATOR",),
        base_gin_file="commands/inspect.gin",
        derives=("model",),
    ),
    "vocabulary": Command(
        "t5x_like.vocabulary.vocabulary",
        "train a vocabulary on text files",
        "commands/vocabulary.gin",
        flags={
            "pattern": ("PATTERN", "the files to train on, such as 'books/*.txt' or 'data/*.parquet'"),
            "kind": (
                "KIND",
                "sentencepiece (default), sentencepiece_bpe, wordpiece, byte_bpe, bytes, words, albert, xlnet, bigbird "
                "or mt5",
            ),
            "size": ("SIZE", "number of tokens, including special tokens (default: 32000; of words: all)"),
            "output": ("OUTPUT_PATH", "the directory to write to (default: vocabulary/KIND)"),
            "lower_case": ("LOWER_CASE", "wordpiece, albert, xlnet: lower-case (default: as published)"),
            "overwrite": ("OVERWRITE", "write to a directory that is not empty"),
        },
        flag_defaults={"overwrite": "True"},
        settings={
            "TEXT_COLUMN": "column, or field of a record, with the text (default: text)",
            "MAX_BYTES": "bytes of text to train on (default: 256 MiB)",
            "MIN_COUNT": "words: rarer words are left out (default: 5)",
            "DOMAINS": "languages or domains with their files, whose coverage and fertility are printed",
            "BEAM": "options of Apache Beam, which draws the sample (default: in this process)",
        },
    ),
    "clean": Command(
        "t5x_like.clean.clean",
        "remove boilerplate, duplicates and other languages from web pages, by the rules of C4",
        "corpora/c4_en.gin",
        flags={
            "input": ("DATA_FILES", "the files to read: WET files, such as 'crawl/*.wet.gz', or another format"),
            "output": ("OUTPUT_PATH", "the directory to write to, local or in a bucket"),
            "overwrite": ("OVERWRITE", "write to a directory that is not empty"),
        },
        flag_defaults={"overwrite": "True"},
        settings={
            "STEPS": "the steps; set by corpora/c4_en.gin (the default) and other files of corpora/",
            "BAD_WORDS": "files with words whose pages are removed, such as \"{'en': 'words.txt'}\"",
            "DETECTOR": "library that detects languages: langdetect (default), langdetect_rs or cld3",
            "ON_BAD_RECORD": "error (default), or skip to skip and count records that cannot be read",
            "NUM_SHARDS": "number of files (default: 8)",
            "OUTPUT_FORMAT": "jsonl.zst (default), jsonl.gz or parquet",
            "BEAM": "options of Apache Beam (default: run in this process)",
        },
        base_gin_file="commands/clean.gin",
        paths=("OUTPUT_PATH",),
    ),
}
