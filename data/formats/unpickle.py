"""Program that converts an SGLang dump on stdin to JSON lines.

    python -I unpickle.py <requests.pkl     # {"asked": {...}, "answered": {...}, ...}

`pickle.load` imports and calls whatever a pickle references. The `find_class` here returns only
plain containers and inert records; any other name stops the reading. sglang_dump.py runs this
program with limited memory and time, because a small pickle can use any amount of either. A line
`{"reject": [reason, detail]}` replaces a request or dump that cannot be read.
"""

import collections
import io
import json
import pickle
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

MEMORY = 4 * 2**30
"""Limit on the process's address space, in bytes."""

SECONDS = 120
"""Limit on the process's CPU time, in seconds."""

LONGEST_LINE = 64 * 2**20
"""Maximum size of a request as JSON, in bytes."""

MOST_GROWTH = 4
"""Maximum ratio of a dump's JSON size to its pickle size; a larger one means values are shared."""

ASKED = (
    *("rid", "text", "input_ids", "sampling_params", "custom_labels", "session_params"),
    *("lora_path", "image_data", "video_data", "audio_data", "input_embeds"),
)
ANSWERED = ("text", "output_ids", "prompt_token_ids", "meta_info", "embedding")
ABOUT = ("completion_tokens", "finish_reason", "e2e_latency")
"""Fields read from a dump, which has many more, such as log-probabilities and hidden states."""

RECORDS = {
    "sglang.srt.managers.io_struct": (
        *("GenerateReqInput", "EmbeddingReqInput", "SessionParams", "ImageData", "VideoData"),
    ),
    "sglang.srt.sampling.sampling_params": ("SamplingParams",),
    "sglang.srt.server_args": ("ServerArgs", "LoRARef"),
    "sglang.srt.lora.lora_registry": ("LoRARef",),
    "sglang.srt.utils": ("ImageData", "VideoData"),
    "sglang.srt.utils.common": ("ImageData", "VideoData"),
    "datetime": ("datetime", "date", "time", "timedelta", "timezone"),
    "uuid": ("UUID",),
    "builtins": ("object",),
}
"""Classes whose objects become inert records of their fields."""

CONTAINERS: dict[tuple[str, str], type] = {
    ("builtins", "list"): list,
    ("builtins", "tuple"): tuple,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "dict"): dict,
    ("collections", "deque"): collections.deque,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
}


class UnsafePickle(Exception):
    """A pickle that references something other than containers and records."""


class PlainRecord:
    """Inert replacement for an object, with the object's fields as attributes."""

    def __init__(self, *arguments: Any, **named: Any):
        pass


class SafeUnpickler(pickle.Unpickler):
    """Unpickler that resolves names only to containers and inert records."""

    def find_class(self, module: str, name: str) -> type:
        if name in RECORDS.get(module, ()):
            return type(name, (PlainRecord,), {})
        if (module, name) not in CONTAINERS:
            shown = re.sub(r"[^\w.<>]", "?", f"{module[:80]}.{name[:80]}")
            raise UnsafePickle(f"references {shown}")
        return CONTAINERS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle("references a persistent id")


def lines_of(data: bytes) -> Iterator[str]:
    """Yields a JSON line per request, or one reject for the dump."""
    stream = io.BytesIO(data)
    try:
        value = SafeUnpickler(stream, encoding="latin-1").load()
    except UnsafePickle as error:
        yield _reject("unsafe_pickle", str(error))
        return
    except MemoryError:
        yield _reject("pickle_too_large", f"its objects take more than {MEMORY >> 30} GB")
        return
    except Exception as error:  # a damaged pickle raises almost anything
        yield _reject("damaged_pickle", f"{type(error).__name__} at byte {stream.tell()}")
        return
    dump = value if isinstance(value, dict) else {"requests": value}
    requests = dump.get("requests")
    if stream.tell() < len(data):
        yield _reject("damaged_pickle", f"data after its end at byte {stream.tell()}")
    elif not isinstance(requests, list) or not requests:
        yield _reject("not_a_dump", "no list of requests in the pickle")
    else:
        yield from _requests(requests, _fields(dump.get("server_args")), MOST_GROWTH * len(data))


def _requests(requests: list[Any], server: dict[str, Any], left: int) -> Iterator[str]:
    """Yields a line per request; rejects requests beyond `left` characters in total."""
    names = [server.get(key) for key in ("served_model_name", "model_path")]
    model = next((name for name in names if isinstance(name, str)), None)
    for entry in requests:
        try:
            line = _line(entry, model)
        except (ValueError, RecursionError):  # a value that contains itself, or a very long integer
            line = _reject("nested_too_deeply", "a value that JSON cannot represent")
        if len(line) > min(left, LONGEST_LINE):  # a pickle can repeat one list a million times
            detail = f"a request above {LONGEST_LINE >> 20} MB, or values shared by many requests"
            line = _reject("pickle_too_large", detail)
        left -= len(line)
        yield line


def _line(entry: Any, model: str | None) -> str:
    if not isinstance(entry, tuple | list) or len(entry) < 2:
        return _reject("wrong_type", "an entry of the dump is not a tuple of request and response")
    if type(entry[0]).__name__ == "EmbeddingReqInput":
        return _reject("not_a_generation", "an embedding")
    answered = _chosen(entry[1], ANSWERED)
    if "meta_info" in answered:
        answered["meta_info"] = _chosen(answered["meta_info"], ABOUT)
    times = {name: time for name, time in zip(("created", "finished"), entry[2:], strict=False)}
    row = {"asked": _chosen(entry[0], ASKED), "answered": answered, "model": model, **times}
    return json.dumps(row, default=_plain, skipkeys=True)


def _chosen(holder: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    fields = _fields(holder)
    return {key: fields[key] for key in keys if key in fields}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, PlainRecord):
        return vars(value)
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, PlainRecord) else f"<{type(value).__name__}>"


def _reject(reason: str, detail: str) -> str:
    return json.dumps({"reject": [reason, detail]})


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    for line in lines_of(sys.stdin.buffer.read()):
        print(line)
