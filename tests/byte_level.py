"""The letters that stand for bytes in the files of byte-level BPE."""


def byte_letters() -> list[str]:
    """Returns the letter of each byte: itself if it is printable, otherwise a letter from U+0100."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte if byte in printed else 256 + others.index(byte)) for byte in range(256)]
