"""Pickles read without running anything: containers, scalars and plain records, and an error that names whatever else is asked for.

A pickle is a program; `pickle.load` runs it, calling any function that it names. Here its instructions only ever build lists,
dicts and `PlainRecord`s: a name that is not on the list below ends the reading, one that is becomes a record of its fields, and the
class behind it is never imported. Time and memory are bounded by the size of the pickle and by `MEMORY`, whatever it says.

    value = unpickle(data)      # or raises Reject("unsafe_pickle", "asks for os.system")
"""

import re
import struct
from collections.abc import Callable
from typing import Any

from outrider.data.exchange import Reject

LARGEST = 256 * 2**20
"""Bytes of a pickle."""

MEMORY = 2**30
"""Bytes that its objects may take, as estimated while they are made."""

LONGEST_NUMBER = 100
"""Characters of a number written as text; Python's time for one grows with the square of its length."""

RECORDS = {
    "sglang.srt.managers.io_struct": {
        "GenerateReqInput",
        "EmbeddingReqInput",
        "SessionParams",
        "ImageData",
        "VideoData",
    },
    "sglang.srt.sampling.sampling_params": {"SamplingParams"},
    "sglang.srt.server_args": {"ServerArgs", "LoRARef"},
    "sglang.srt.lora.lora_registry": {"LoRARef"},
    "sglang.srt.utils": {"ImageData", "VideoData"},
    "sglang.srt.utils.common": {"ImageData", "VideoData"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "uuid": {"UUID"},
    "builtins": {"object"},
}
"""Classes that become records of their fields."""

LISTS = {("builtins", name) for name in ("list", "tuple", "set", "frozenset")} | {
    ("collections", "deque")
}
DICTS = {("builtins", "dict"), ("collections", "OrderedDict"), ("collections", "defaultdict")}
"""Classes that become plain lists and dicts."""

REBUILD = {("copyreg", "_reconstructor"), ("copyreg", "__newobj__")}
"""Functions with which old protocols say that an object of a class follows."""

OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class Name(tuple[str, str]):
    """A class or function that the pickle names: its module and its name in it. Nothing is imported."""

    __slots__ = ()


class PlainRecord:
    """What stands in for an object: the name of its class and its fields."""

    __slots__ = ("arguments", "fields", "name")

    def __init__(self, name: Name, arguments: list[Any] | tuple[Any, ...] = ()):
        self.name = name
        self.arguments = arguments
        self.fields: dict[Any, Any] = {}


def is_pickle(head: bytes) -> bool:
    """Whether bytes begin as a pickle of protocol 2 or later does."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2:3] in _INSTRUCTIONS


def unpickle(data: bytes) -> Any:
    """The value in a pickle; raises `Reject` for one that is damaged, too large, or asks for what is not on the lists."""
    if len(data) > LARGEST:
        raise Reject("pickle_too_large", f"more than {LARGEST >> 20} MB")
    machine = _Machine(data)
    try:
        value = machine.run()
    except (IndexError, KeyError, struct.error, TypeError, ValueError, OverflowError) as error:
        # A stack that is empty, a memo that was never set, a number or text that is none: only a damaged pickle has these.
        raise Reject("damaged_pickle", f"{type(error).__name__} at byte {machine.at}") from None
    if machine.at < len(data):
        raise Reject("damaged_pickle", f"it goes on behind its end at byte {machine.at}")
    return value


_INTEGERS = re.compile(rb"(?:K.|M..|J....){1,4096}+", re.DOTALL)
_INTEGER = re.compile(rb"K.|M..|J....", re.DOTALL)
_INTEGER_COST, _COST = 36, 64


class _Machine:
    """Pickle's stack machine, without the instructions that call anything."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.memory = 0

    def run(self) -> Any:
        data = self.data
        while True:
            while run := _INTEGERS.match(data, self.at):  # token ids, most of a dump
                self.at = run.end()
                found = _INTEGER.findall(run[0])
                self.charge(_INTEGER_COST * len(found))
                self.stack += [
                    int.from_bytes(one[1:], "little", signed=one[0] == 74) for one in found
                ]
            instruction = data[self.at : self.at + 1]
            self.at += 1
            if instruction == b".":
                (value,) = self.stack
                return value
            handler = _INSTRUCTIONS.get(instruction)
            if handler is None:
                raise Reject("damaged_pickle", f"no instruction of a pickle at byte {self.at - 1}")
            self.charge(_COST)
            handler(self)

    def charge(self, amount: int) -> None:
        self.memory += amount
        if self.memory > MEMORY:
            raise Reject("pickle_too_large", f"its objects take more than {MEMORY >> 20} MB")

    def read(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Reject("damaged_pickle", "it ends in the middle")
        self.at += size
        self.charge(size)
        return self.data[self.at - size : self.at]

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        line = self.read(end - self.at)
        self.at += 1
        return line

    def number(self, code: str) -> int:
        (value,) = struct.unpack(code, self.read(struct.calcsize(code)))
        return value

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        if mark > len(self.stack):
            raise IndexError
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def pop(self) -> Any:
        # What stands below a mark belongs to the instruction that takes the mark away.
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack.pop()

    def name(self, module: Any, name: Any) -> Name:
        if type(module) is not str or type(name) is not str:
            raise TypeError
        found = Name((OLD_NAMES.get(module, module), name))
        if not (
            found in LISTS
            or found in DICTS
            or found in REBUILD
            or name in RECORDS.get(found[0], ())
        ):
            if found == ("_codecs", "encode"):  # how protocol 2 writes bytes
                return found
            raise Reject("unsafe_pickle", f"asks for {_shown(module)}.{_shown(name)}")
        return found

    def made(self, name: Any, arguments: Any) -> Any:
        """What a class or function of the lists, called with these, is replaced by."""
        if type(name) is not Name or type(arguments) not in (tuple, list):
            raise Reject("unsafe_pickle", "asks to call something that is no name")
        if name in REBUILD:
            if not arguments or type(arguments[0]) is not Name or arguments[0] in REBUILD:
                raise Reject(
                    "unsafe_pickle", f"asks {'.'.join(name)} for something that is no name"
                )
            return self.made(arguments[0], ())
        if name == ("_codecs", "encode"):
            text, encoding = arguments
            if type(text) is not str or encoding not in ("latin1", "latin-1"):
                raise TypeError
            return text.encode("latin-1")
        if name in LISTS:
            return self.copied(arguments[0]) if arguments else []
        if name in DICTS:
            pairs = arguments[0] if arguments and type(arguments[0]) is list else []
            made: dict[Any, Any] = {}
            for pair in pairs:
                key, value = pair
                self.charge(_COST)
                made[_key(key)] = value
            return made
        return PlainRecord(name, arguments)

    def copied(self, value: Any) -> list[Any]:
        if type(value) not in (list, tuple):
            raise TypeError
        self.charge(8 * len(value))
        return list(value)

    def set_items(self, holder: Any, items: list[Any]) -> None:
        fields = holder.fields if type(holder) is PlainRecord else holder
        if type(fields) is not dict or len(items) % 2:
            raise TypeError
        self.charge(_COST * len(items))
        for index in range(0, len(items), 2):
            fields[_key(items[index])] = items[index + 1]

    def append_items(self, holder: Any, items: list[Any]) -> None:
        if type(holder) is not list:
            raise TypeError
        self.charge(8 * len(items))
        holder.extend(items)


def _key(key: Any) -> Any:
    # Only what hashes at random or as itself: a pickle could hold a million large numbers that all hash to one value.
    if key is None or type(key) in (str, bytes, bool) or (type(key) is int and abs(key) < 2**60):
        return key
    raise Reject("damaged_pickle", "a key that is neither a text nor a small number")


def _shown(name: str) -> str:
    return "".join(
        character if character.isalnum() or character in "._<>" else "?" for character in name[:80]
    )


def _push(read: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        machine.stack.append(read(machine))

    return handler


def _text(code: str) -> Callable[[_Machine], None]:
    return _push(
        lambda machine: machine.read(machine.number(code)).decode("utf-8", "surrogatepass")
    )


def _bytes(code: str) -> Callable[[_Machine], None]:
    return _push(lambda machine: machine.read(machine.number(code)))


def _integer(text: bytes) -> int | bool:
    if text in (b"00", b"01"):
        return text == b"01"
    if len(text) > LONGEST_NUMBER:
        raise ValueError
    return int(text.removesuffix(b"L"))


def _long(code: str) -> Callable[[_Machine], None]:
    def read(machine: _Machine) -> int:
        held = machine.read(machine.number(code))
        if len(held) > LONGEST_NUMBER:
            raise ValueError
        return int.from_bytes(held, "little", signed=True)

    return _push(read)


def _old_text(machine: _Machine) -> str:
    line = machine.line()
    if line[:1] not in (b"'", b'"') or line[-1:] != line[:1] or len(line) < 2:
        raise ValueError
    return line[1:-1].decode("unicode_escape")


def _tuple(size: int) -> Callable[[_Machine], None]:
    def read(machine: _Machine) -> tuple[Any, ...]:
        items = [machine.pop() for _ in range(size)]
        return tuple(reversed(items))

    return _push(read)


def _name_of_line(machine: _Machine) -> Name:
    module, name = machine.line(), machine.line()
    return machine.name(module.decode(), name.decode())


def _name_of_stack(machine: _Machine) -> Name:
    name, module = machine.pop(), machine.pop()
    return machine.name(module, name)


def _reduce(machine: _Machine) -> Any:
    arguments, name = machine.pop(), machine.pop()
    return machine.made(name, arguments)


def _new_object_ex(machine: _Machine) -> Any:
    fields, arguments, name = machine.pop(), machine.pop(), machine.pop()
    made = machine.made(name, arguments)
    if type(fields) is dict and type(made) is PlainRecord:
        made.fields.update(fields)
        machine.charge(_COST * len(fields))
    return made


def _instance(machine: _Machine) -> Any:
    name = _name_of_line(machine)
    return machine.made(name, machine.since_mark())


def _object(machine: _Machine) -> Any:
    name, *arguments = machine.since_mark()
    return machine.made(name, arguments)


def _build(machine: _Machine) -> None:
    state, holder = machine.pop(), machine.stack[-1]
    if type(holder) is not PlainRecord:
        if type(holder) in (list, dict):  # what a subclass would keep beside its items
            return
        raise TypeError
    for part in state if type(state) is tuple and len(state) == 2 else (state,):
        if type(part) is dict:
            machine.charge(_COST * len(part))
            holder.fields.update(part)


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _frozen(machine: _Machine) -> list[Any]:
    return machine.since_mark()


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items(machine.stack[-1], [key, value])


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.set_items(machine.stack[-1], items)


def _append(machine: _Machine) -> None:
    item = machine.pop()
    machine.append_items(machine.stack[-1], [item])


def _appends(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.append_items(machine.stack[-1], items)


def _pairs(machine: _Machine) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    machine.set_items(made, machine.since_mark())
    return made


def _pop(machine: _Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


def _refused(what: str, size: int = 0) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        said = f" {int.from_bytes(machine.read(size), 'little')}" if size else ""
        raise Reject("unsafe_pickle", f"asks for {what}{said}")

    return handler


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda machine: machine.read(1) and None,  # the protocol
    b"\x95": lambda machine: machine.number("<Q") and None,  # a frame begins
    b"(": lambda machine: machine.marks.append(len(machine.stack)),
    b"0": _pop,
    b"1": lambda machine: machine.since_mark() and None,
    b"2": _push(lambda machine: machine.stack[-1]),
    # Scalars
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"K": _push(lambda machine: machine.number("<B")),
    b"M": _push(lambda machine: machine.number("<H")),
    b"J": _push(lambda machine: machine.number("<i")),
    b"I": _push(lambda machine: _integer(machine.line())),
    b"L": _push(lambda machine: _integer(machine.line())),
    b"\x8a": _long("<B"),
    b"\x8b": _long("<i"),
    b"F": _push(lambda machine: float(machine.line()[:LONGEST_NUMBER])),
    b"G": _push(lambda machine: machine.number(">d")),
    b"X": _text("<I"),
    b"\x8c": _text("<B"),
    b"\x8d": _text("<Q"),
    b"V": _push(lambda machine: machine.line().decode("raw-unicode-escape")),
    b"S": _push(_old_text),
    b"T": _push(lambda machine: machine.read(machine.number("<i")).decode("latin-1")),
    b"U": _push(lambda machine: machine.read(machine.number("<B")).decode("latin-1")),
    b"B": _bytes("<I"),
    b"C": _bytes("<B"),
    b"\x8e": _bytes("<Q"),
    b"\x96": _bytes("<Q"),
    # Containers; a set is a list, and a tuple of any length a tuple
    b"]": _push(lambda machine: []),
    b"}": _push(lambda machine: {}),
    b")": _push(lambda machine: ()),
    b"\x8f": _push(lambda machine: []),
    b"l": _push(lambda machine: machine.since_mark()),
    b"t": _push(lambda machine: tuple(machine.since_mark())),
    b"d": _push(_pairs),
    b"\x91": _push(_frozen),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"a": _append,
    b"e": _appends,
    b"\x90": _appends,
    b"s": _set_item,
    b"u": _set_items,
    # The memo
    b"p": lambda machine: _put(machine, int(machine.line()[:LONGEST_NUMBER])),
    b"q": lambda machine: _put(machine, machine.number("<B")),
    b"r": lambda machine: _put(machine, machine.number("<I")),
    b"\x94": lambda machine: _put(machine, len(machine.memo)),
    b"g": _push(lambda machine: machine.memo[int(machine.line()[:LONGEST_NUMBER])]),
    b"h": _push(lambda machine: machine.memo[machine.number("<B")]),
    b"j": _push(lambda machine: machine.memo[machine.number("<I")]),
    # Objects
    b"c": _push(_name_of_line),
    b"\x93": _push(_name_of_stack),
    b"R": _push(_reduce),
    b"\x81": _push(_reduce),
    b"\x92": _push(_new_object_ex),
    b"i": _push(_instance),
    b"o": _push(_object),
    b"b": _build,
    b"P": _refused("a persistent id"),
    b"Q": _refused("a persistent id"),
    b"\x82": _refused("extension code", 1),
    b"\x83": _refused("extension code", 2),
    b"\x84": _refused("extension code", 4),
    b"\x97": _refused("a buffer that was stored elsewhere"),
    b"\x98": _refused("a buffer that was stored elsewhere"),
}
