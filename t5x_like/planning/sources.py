"""Lines of the traced code that the instructions of a compiled program come from."""

import re
from collections.abc import Iterator

PACKAGE = "t5x_like"
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"(\d+) (.*)")
_NUMBER = re.compile(r"(\w+)=(\d+)")
_METADATA = re.compile(r'metadata=\{[^}]*op_name="([^"]*)"(?:[^}]*stack_frame_id=(\d+))?')


class Sources:
    """Sources of instructions, from the tables of stack frames before the computations of a program.

    Args:
      text: The program, result of `compiled.as_text()`.
    """

    def __init__(self, text: str):
        self._tables: dict[str, dict[str, str]] = {name: {} for name in _TABLES}
        self._lines: dict[str, str] = {}
        self._files: dict[str, frozenset[str]] = {}
        table = None
        for line in text.splitlines():
            if line in _TABLES:
                table = self._tables[line]
            elif table is not None and (row := _ROW.match(line)):
                table[row[1]] = row[2]
            elif table is not None and line:  # the first computation
                break

    def of(self, attributes: str) -> str:
        """Returns the source of an instruction, such as `backward layers/norms.py:92 reduce_sum`.

        It consists of the pass, if the operation belongs to a gradient, the innermost line of this package and the
        primitive of JAX. That of a fusion is the source of one of its operations, usually the last one.

        Args:
          attributes: Attributes of the instruction.

        Returns:
          The source; `?` for instructions that the compiler added.
        """
        match = _METADATA.search(attributes)
        if match is None:
            return "?"
        name, frame = match.groups()
        direction = "backward" if "transpose(" in name else "forward" if "jvp(" in name else ""
        if frame and frame not in self._lines:
            self._lines[frame] = self._line(frame)
        line = self._lines.get(frame, "")
        return " ".join(part for part in (direction, line, name.rpartition("/")[2]) if part)

    def files(self, attributes: str) -> frozenset[str]:
        """Returns the files of this package on the stack of an instruction, such as `layers/norms.py`.

        Args:
          attributes: Attributes of the instruction.
        """
        match = _METADATA.search(attributes)
        frame = (match[2] or "") if match else ""
        if frame not in self._files:
            self._files[frame] = frozenset(file for file, _ in self._stack(frame))
        return self._files[frame]

    def _line(self, frame: str) -> str:
        """Returns `FILE:LINE` of the innermost frame within this package; an empty string without one."""
        return next((f"{file}:{line}" for file, line in self._stack(frame)), "")

    def _stack(self, frame: str) -> Iterator[tuple[str, str]]:
        """Yields the file and the line of the frames within this package, innermost first."""
        while frame in self._tables["StackFrames"]:
            found = dict(_NUMBER.findall(self._tables["StackFrames"][frame]))
            place = dict(_NUMBER.findall(self._tables["FileLocations"].get(found["file_location_id"], "")))
            file = self._tables["FileNames"].get(place.get("file_name_id", ""), "").strip('"')
            if f"/{PACKAGE}/" in file:
                yield file.rpartition(f"/{PACKAGE}/")[2], place["line"]
            frame = str(int(found.get("parent_frame_id", "1")) - 1)  # counts from 1, and 1 stands for no parent
