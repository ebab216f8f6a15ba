"""JSON whose form is checked when it is read.

    parts = read_form(dict[str, list[str]], path, fix="delete it and repeat the split")

A form is any type that pydantic validates: a dataclass, a model, a list or a dictionary of such.
Values are not converted: "3" is no number. Keys that a form lacks are ignored, so that files of a
later Outrider are read.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from outrider.common.errors import OutriderError
from outrider.common.files import read_text

Form = TypeVar("Form")

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A number of bytes, tokens or steps; any JSON reader keeps integers below 2**53."""


def read_form(form: type[Form], path: Path, fix: str) -> Form:
    """Reads a JSON file as a `form`.

    Raises an `OutriderError` with the file, the key, its value and `fix` if the file is missing,
    is not JSON, or has another form.
    """
    return parse_form(form, read_text(path), path, fix)


class Anything(BaseModel):
    """An object with any keys."""


def read_object(form: type[BaseModel], path: Path, fix: str) -> Any:
    """Reads a JSON object with all its keys; checks those of `form` as `read_form` does."""
    text = read_text(path)
    parse_form(form, text, path, fix)
    return json.loads(text)


def parse_form(form: type[Form], text: str | bytes, where: object, fix: str) -> Form:
    """Reads JSON text as a `form`; `where` begins the message of the error."""
    try:
        return TypeAdapter(form).validate_json(text, strict=True)
    except ValidationError as error:
        raise OutriderError(f"{where}: {_first_mistake(error)}; {fix}") from None


def validate_form(form: type[Form], value: object) -> Form:
    """Returns a value that was read from JSON as a `form`; raises a `ValueError`."""
    try:
        return TypeAdapter(form).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(_first_mistake(error)) from None


def _first_mistake(error: ValidationError) -> str:
    """Describes the first mistake: its key, its value unless the key is missing, and the rule."""
    mistake: Any = error.errors(include_url=False)[0]
    # Escaped and at most 80 characters: a key may be any text.
    key = repr(".".join(map(str, mistake["loc"])))[1:-1][:80]
    if mistake["type"] == "json_invalid":
        return f"not valid JSON ({mistake['msg']})"
    if mistake["type"] == "missing":
        return f"{key} is missing"
    # 40 characters: a value may be a whole object.
    value = f"{mistake['input']!r:.40}"
    return f"{key or 'the content'} = {value}: {mistake['msg']}"
