"""Plain lists in pickles: numbers and text are taken out of the bytes as they come, and nothing is ever unpickled."""

import pickle
from collections.abc import Generator
from struct import Struct
from typing import IO, Final, Literal

from dietcl.errors import UserError

Value = str | int | float | None
Memo = dict[int, Value]  # what is fetched again, by the number under which it was put aside

CHUNK = 2**22  # bytes that are read at a time
LONGEST = 2**16 - 1  # bytes of a text; picklers write longer ones in another way, and no path is that long
_MARGIN = 512  # bytes; more than any opcode takes with its argument, except text
_LOST: Final = float("nan")  # stands for what was not put aside yet: this one object, not any nan

_byte, _uint4 = Struct("<B").unpack_from, Struct("<I").unpack_from
# By opcode: where what follows it ends, counted from the opcode, and how that is read.
_TEXTS = {
    pickle.BINUNICODE[0]: (5, _uint4),
    pickle.SHORT_BINUNICODE[0]: (2, _byte),
    pickle.BINUNICODE8[0]: (9, Struct("<Q").unpack_from),
}
_NUMBERS = {
    pickle.BININT1[0]: (2, _byte),
    pickle.BININT2[0]: (3, Struct("<H").unpack_from),
    pickle.BININT[0]: (5, Struct("<i").unpack_from),
    pickle.BINFLOAT[0]: (9, Struct(">d").unpack_from),
}
_FETCHES = {pickle.BINGET[0]: (2, _byte), pickle.LONG_BINGET[0]: (5, _uint4)}
_PUTS = {pickle.BINPUT[0]: (2, _byte), pickle.LONG_BINPUT[0]: (5, _uint4)}
_CONSTANTS = {pickle.NONE[0]: None, pickle.NEWTRUE[0]: True, pickle.NEWFALSE[0]: False}
_PASSED_OVER = {pickle.PROTO[0]: 2, pickle.FRAME[0]: 9}
_LONG, _MEMOIZE, _STOP = pickle.LONG1[0], pickle.MEMOIZE[0], pickle.STOP[0]
_LIST, _MARK, _APPEND, _APPENDS = pickle.EMPTY_LIST[0], pickle.MARK[0], pickle.APPEND[0], pickle.APPENDS[0]
_TUPLE = pickle.TUPLE[0]
_TUPLES = {pickle.EMPTY_TUPLE[0]: 0, pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}


class NotPlain(Exception):
    """It is no list of numbers and text alone, or none as picklers write it."""


def again(fetched: Memo) -> Memo:
    """Return the memo for the second pass, made of the one that the first has filled."""
    return dict.fromkeys(fetched, _LOST)


def values(stream: IO[bytes], memo: Memo, path: str) -> Generator[list[Value], None, bytes]:
    """Yield the values of a list or tuple some at a time, and return what was read beyond its end.

    The first pass takes an empty memo and learns in it which values are fetched again; the first time that one is
    fetched, it yields None instead. The second pass takes `again(memo)` and keeps these values alone.
    """
    shape = _Shape()
    chunk, at, is_last = b"", 0, False
    memoized, is_numbered = 0, False  # how many were put aside by count, and whether any was by number
    before = 0  # values since the last change of the shape that are in chunks before this one
    value: Value
    while not shape.is_whole:
        if is_last:
            raise UserError(f"{path}: the list is cut off; get the file again")
        more = stream.read(CHUNK)
        is_last = not more
        chunk = chunk[at:] + (more or bytes(_MARGIN))
        at, limit = 0, len(chunk) - _MARGIN
        found: list[Value] = []
        changed = -before
        while at < limit:  # the loop that takes all the time
            op = chunk[at]
            if op in _TEXTS:
                width, unpack = _TEXTS[op]
                start = at + width
                end = start + unpack(chunk, at + 1)[0]
                if end - start > LONGEST:
                    raise UserError(f"{path}: a text in the list has more than {LONGEST} bytes; get the file again")
                if end > limit:
                    break
                try:
                    value = chunk[start:end].decode()
                except UnicodeDecodeError:
                    value = _with_surrogates(chunk[start:end], path)
                found.append(value)
                at = end
                op = chunk[at]
                if op in _PUTS:
                    width, unpack = _PUTS[op]
                    is_numbered = True
                    if memo and (number := unpack(chunk, at + 1)[0]) in memo:
                        memo[number] = value
                    at += width
                elif op == _MEMOIZE:
                    if memoized in memo:
                        memo[memoized] = value
                    memoized += 1
                    at += 1
            elif op in _NUMBERS:
                width, unpack = _NUMBERS[op]
                found.append(unpack(chunk, at + 1)[0])
                at += width
            elif op in _FETCHES:
                width, unpack = _FETCHES[op]
                value = memo.setdefault(unpack(chunk, at + 1)[0], None)
                if value is _LOST:
                    raise UserError(f"{path}: the list is broken; get the file again")
                found.append(value)
                at += width
            elif op == _LONG:
                end = at + 2 + chunk[at + 1]
                found.append(int.from_bytes(chunk[at + 2 : end], "little", signed=True))
                at = end
            elif op in _CONSTANTS:
                found.append(_CONSTANTS[op])
                at += 1
            elif op in _PASSED_OVER:
                at += _PASSED_OVER[op]
            elif op in _PUTS:
                width, unpack = _PUTS[op]
                shape.put_aside(unpack(chunk, at + 1)[0], len(found) - changed)
                is_numbered = True
                at += width
            elif op == _MEMOIZE:
                shape.put_aside(memoized, len(found) - changed)
                memoized += 1
                at += 1
            else:
                shape.change(op, len(found) - changed)
                changed = len(found)
                at += 1
                if shape.is_whole:
                    break
        before = len(found) - changed
        if shape.is_whole and (shape.number in memo or (memo and memoized and is_numbered)):
            raise NotPlain  # it holds itself, or counts and numbers may mean the same
        yield found
    return chunk[at:limit] if is_last else chunk[at:]


class _Shape:
    """How values become a list or a tuple, in the ways in which picklers write it."""

    def __init__(self) -> None:
        self.is_whole = False
        self.number: int | None = None  # under which the list itself is put aside
        self._kind: Literal["none", "list", "tuple"] = "none"
        self._is_marked = self._is_new = False

    def change(self, op: int, since: int) -> None:
        """Take in an opcode that makes no value, and how many values there were since the one before."""
        is_open = not self._is_marked and not since
        self._is_new = False
        if op == _MARK and is_open and self._kind != "tuple":
            self._is_marked = True
        elif op == _APPENDS and self._is_marked and self._kind == "list":
            self._is_marked = False
        elif op == _APPEND and not self._is_marked and self._kind == "list" and since == 1:
            pass
        elif op == _LIST and is_open and self._kind == "none":
            self._kind, self._is_new = "list", True
        elif self._kind == "none" and (op == _TUPLE if self._is_marked else _TUPLES.get(op) == since):
            self._kind, self._is_new, self._is_marked = "tuple", True, False
        elif op == _STOP and is_open and self._kind != "none":
            self.is_whole = True
        else:
            raise NotPlain

    def put_aside(self, number: int, since: int) -> None:
        """Take in that what came last is put aside; picklers do this with a new list, and else with text alone."""
        if not self._is_new or since:
            raise NotPlain
        self.number, self._is_new = number, False


def _with_surrogates(text: bytes, path: str) -> str:
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise UserError(f"{path}: a text in the list is not UTF-8; get the file again") from None
