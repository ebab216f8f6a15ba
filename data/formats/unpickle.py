"""Restricted unpickling: containers, scalars and inert records, never code.

`pickle.load` runs a program: it imports and calls any function that the pickle names. This reader
is the standard library's pure-Python unpickler with every call removed. A class on the allow-list
becomes a `PlainRecord` of its fields, or a plain list or dict. Any other name ends the reading. No
class of the pickle is ever imported.

Size and memory are capped (`LARGEST`, `MEMORY`). Nothing here recurses, so depth needs no cap.

    value = unpickle(data)      # or raises Reject("unsafe_pickle", "asks for os.system")

`pickle._Unpickler` is private but stable: Python 3.8 to 3.14 share the attributes that are used
here (`dispatch`, `stack`, `append`, `pop_mark`, `find_class`).
"""

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

from outrider.data.exchange import Reject

LARGEST = 256 * 2**20
"""Maximum size of a pickle, in bytes."""

MEMORY = 2**30
"""Maximum estimated size of its objects, in bytes."""

LONGEST_NUMBER = 100
"""Maximum size of an integer, in bytes. Larger ones could not be printed: Python limits that."""

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

LISTS = {
    ("builtins", "list"),
    ("builtins", "tuple"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("collections", "deque"),
}
DICTS = {("builtins", "dict"), ("collections", "OrderedDict"), ("collections", "defaultdict")}
"""Classes that become plain lists and dicts."""

REBUILD = {("copyreg", "_reconstructor"), ("copyreg", "__newobj__")}
"""Functions through which old protocols create an object; their first argument is its class."""

ENCODE = ("_codecs", "encode")
"""Function through which protocol 2 and earlier create bytes."""

OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class Name(tuple[str, str]):
    """The module and name of a class or function; an inert stub for it."""

    __slots__ = ()


class PlainRecord:
    """Inert replacement of an object: its class name, arguments and fields."""

    __slots__ = ("arguments", "fields", "name")

    def __init__(self, name: Name, arguments: Sequence[Any] = ()):
        self.name = name
        self.arguments = arguments
        self.fields: dict[Any, Any] = {}


def is_pickle(head: bytes) -> bool:
    """Whether the bytes begin like a pickle of protocol 2 or later."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2] in _Reader.dispatch


DAMAGE = (
    # An empty stack, an unset memo, a text that is no number, a type without such items.
    *(IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError),
    # An early end, a short number.
    *(EOFError, struct.error, pickle.UnpicklingError),
)
"""What only a damaged pickle raises."""


def unpickle(data: bytes) -> Any:
    """Returns the value in a pickle.

    Raises:
        Reject: `damaged_pickle`, `pickle_too_large`, or `unsafe_pickle` for a name that is not on
            the allow-list.
    """
    if len(data) > LARGEST:
        raise Reject("pickle_too_large", f"more than {LARGEST >> 20} MB")
    reader = _Reader(data)
    try:
        value = reader.load()
    except DAMAGE as error:
        detail = f"{type(error).__name__} at byte {reader.file.tell()}"
        raise Reject("damaged_pickle", detail) from None
    if reader.file.tell() < len(data):
        raise Reject("damaged_pickle", f"data after its end at byte {reader.file.tell()}")
    return value


SCALAR_BYTES, OBJECT_BYTES = 36, 96
"""Estimated memory of a number with its place in a list, and of a small container or memo entry."""


class _Reader(pickle._Unpickler):
    """The standard unpickler, where names are inert and nothing is called."""

    # Attributes of the base class.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes):
        self.file = io.BytesIO(data)
        self.memory = len(data)
        super().__init__(self.file, encoding="latin-1")

    def charge(self, amount: int) -> None:
        self.memory += amount
        if self.memory > MEMORY:
            raise Reject("pickle_too_large", f"its objects take more than {MEMORY >> 20} MB")

    # Names

    def find_class(self, module: str, name: str) -> Name:
        found = Name((OLD_NAMES.get(module, module), name))
        known = found in LISTS | DICTS | REBUILD or found == ENCODE
        if not known and name not in RECORDS.get(found[0], ()):
            raise Reject("unsafe_pickle", f"asks for {_shown(module)}.{_shown(name)}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise Reject("unsafe_pickle", "asks for a persistent id")

    def get_extension(self, code: int) -> None:
        raise Reject("unsafe_pickle", f"asks for extension code {code}")

    def refuse_buffer(self) -> None:
        raise Reject("unsafe_pickle", "asks for a buffer outside the pickle")

    # Calls of classes and functions

    def create(self, name: Any, arguments: Any) -> Any:
        """Returns the inert object for a call of `name`."""
        if type(name) is not Name or type(arguments) not in (tuple, list):
            raise Reject("unsafe_pickle", "asks to call a value that is not a class")
        if name in REBUILD:
            if not arguments or type(arguments[0]) is not Name or arguments[0] in REBUILD:
                raise Reject("unsafe_pickle", f"asks {'.'.join(name)} for a value, not a class")
            return self.create(arguments[0], ())
        if name == ENCODE:
            text, encoding = arguments
            if type(text) is not str or encoding not in ("latin1", "latin-1"):
                raise TypeError
            return text.encode("latin-1")
        first = arguments[0] if arguments else ()
        if name in LISTS:
            if type(first) not in (list, tuple):
                raise TypeError
            self.charge(8 * len(first))
            return list(first)
        if name in DICTS:
            pairs = first if type(first) is list else []
            self.charge(OBJECT_BYTES * len(pairs))
            return {_key(key): value for key, value in pairs}
        return PlainRecord(name, arguments)

    def load_reduce(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self.append(self.create(name, arguments))

    def load_newobj_ex(self) -> None:
        fields = self.stack.pop()
        self.load_reduce()
        self.update_fields(self.stack[-1], fields)

    def _instantiate(self, klass: Any, args: list[Any]) -> None:
        self.append(self.create(klass, args))

    def load_build(self) -> None:
        state = self.stack.pop()
        holder = self.stack[-1]
        if type(holder) not in (PlainRecord, list, dict):
            raise TypeError
        # A pair is the object's __dict__ and its __slots__.
        for part in state if type(state) is tuple and len(state) == 2 else (state,):
            self.update_fields(holder, part)

    def update_fields(self, holder: Any, fields: Any) -> None:
        # Attributes of a subclass of list or dict are dropped.
        if type(holder) is PlainRecord and type(fields) is dict:
            self.charge(OBJECT_BYTES * len(fields))
            holder.fields.update(fields)

    # Containers: sets become lists, since hashes of hostile values may all be equal

    def load_empty_set(self) -> None:
        self.append([])

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self.set_items(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def load_setitems(self) -> None:
        self.set_items(self.pop_mark())

    def set_items(self, items: list[Any]) -> None:
        holder = self.stack[-1]
        fields = holder.fields if type(holder) is PlainRecord else holder
        if type(fields) is not dict or len(items) % 2:
            raise TypeError
        self.charge(OBJECT_BYTES * len(items))
        for index in range(0, len(items), 2):
            fields[_key(items[index])] = items[index + 1]

    def load_frame(self) -> None:
        self.read(8)  # the number of bytes to read ahead; all are in memory already

    load_newobj = load_reduce
    load_next_buffer = load_readonly_buffer = refuse_buffer
    load_additems = pickle._Unpickler.load_appends  # type: ignore[attr-defined]
    load_frozenset = pickle._Unpickler.load_list  # type: ignore[attr-defined]
    # The standard handler allocates as many bytes as the pickle declares before it reads them.
    load_bytearray8 = pickle._Unpickler.load_binbytes8  # type: ignore[attr-defined]


def _charged(name: str, handler: Callable[[_Reader], None]) -> Callable[[Any], None]:
    """An opcode's handler that first charges the memory of what it creates."""
    amount = SCALAR_BYTES if name in SCALARS else OBJECT_BYTES

    def charged(reader: _Reader) -> None:
        reader.charge(amount)
        handler(reader)

    def limited(reader: _Reader) -> None:
        charged(reader)
        if reader.stack[-1].bit_length() > 8 * LONGEST_NUMBER:
            raise ValueError

    return limited if name in LONG_INTEGERS else charged


LONG_INTEGERS = {"load_int", "load_long", "load_long1", "load_long4"}
SCALARS = {
    *LONG_INTEGERS,
    *("load_binint", "load_binint1", "load_binint2", "load_float", "load_binfloat"),
    *("load_none", "load_true", "load_false", "load_binget", "load_long_binget"),
}
_Reader.dispatch = {
    opcode: _charged(handler.__name__, getattr(_Reader, handler.__name__))
    for opcode, handler in pickle._Unpickler.dispatch.items()
}


def _key(key: Any) -> Any:
    # Only keys whose hashes differ. Large integers may all share one hash.
    if key is None or type(key) in (str, bytes, bool) or (type(key) is int and abs(key) < 2**60):
        return key
    raise Reject("damaged_pickle", "a key that is neither a text nor a small number")


def _shown(name: str) -> str:
    return "".join(
        character if character.isalnum() or character in "._<>" else "?" for character in name[:80]
    )
