"""Words of a shell script, and the files that it writes.

    shell_words('A=(-tp 8)\\nvllm serve org/model "${A[@]}"')
    # [";", "vllm", "serve", "org/model", "-tp", "8"]

Scripts are those of Bash, and of PowerShell and cmd as far as they continue lines. What `ps` shows
of a command, without quotation marks, is read too. Nothing is executed.
"""

import bisect
import json
import re
import shlex

from outrider.common.errors import OutriderError
from outrider.serving.commands.forms.branches import with_decided_branches

END = ";"
"""The word that ends a command."""

_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
"""The beginning of a here document: <<EOF, <<-EOF, <<'EOF'."""

_READ = re.compile(
    r"\"?\$\(cat[ \t]*<<-?[ \t]*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote)[ \t]*\n"
    r"(?P<text>(?:(?![ \t]*(?P=end)[ \t]*\n)[^\n]*\n){0,500})[ \t]*(?P=end)[ \t]*\n[ \t]*\)\"?"
)
"""$(cat <<'EOF' ... EOF), the text itself."""

_PRINTED = re.compile(
    r"^[ \t]*cat[ \t]*(?:1?>&2[ \t]*)?<<-?[ \t]*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote)"
    r"[ \t]*(?:1?>&2[ \t]*)?\n(?:(?![ \t]*(?P=end)[ \t]*\n)[^\n]*\n){0,500}[ \t]*(?P=end)[ \t]*\n",
    re.MULTILINE,
)
"""cat <<EOF ... EOF, such as the text of `--help`."""

_STARTS = re.compile(r"\bvllm(?:[ \t\\\n]+serve\b|[ \t]+[\"']?\$|-openai|\.entrypoints)|\bsglang\b")
"""Words of a command that starts a server."""

_FORMATTED = re.compile(
    r"\"?\$\(printf[ \t]+'(?P<format>[^'\n]{1,2000})'(?P<words>(?:[ \t]+\"?\$\{?\w+\}?\"?){1,20})"
    r"[ \t]*\)\"?"
)
"""$(printf 'FORMAT' "$NAME" ...), whose %s and %d are the variables."""

_WRITTEN = re.compile(r"(?:(?<![<>&\d])>>?[ \t]*|\btee[ \t]+(?:-a[ \t]+)?)([\w./~-]+)")
"""The file that a command writes."""

_ARRAY = re.compile(
    r"^[ \t]*(?:(?:local|declare|typeset|readonly)[ \t]+(?:-\w+[ \t]+)*)?(\w+)(\+?)=\("
    r"((?:(?<=\s)\#[^\n]*|\$\(\(?[^()\n]*\)\)?|[^()'\"]|'[^']*'|\"(?:[^\"\\]|\\.)*\")*)\)",
    re.MULTILINE,
)
"""NAME=(WORDS), in which comments and quotations may have parentheses."""

_ARRAY_NAME = re.compile(r"\b(\w+)\+?=\(")

_SET_UNLESS_SET = re.compile(r"^[ \t]*:[ \t]+\"?\$\{(\w+):?=([^}\n]*)\}\"?", re.MULTILINE)
"""`: "${NAME:=value}"`, which sets NAME unless it has a value."""

_SPACED = re.compile(r"\$\(\([^()\n]*\)\)|\$\([^()\n]*\)|\{\{[^{}\n]*\}\}")
"""$((A * B)), $(command) and {{ name }}, each a word with spaces."""
_ELEMENTS = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
"""${NAME[@]}, the elements of an array."""

_ELEMENTS_IF_SET = re.compile(r"\$\{(\w+)\[@\]:?\+\"?\$\{\1\[@\]\}\"?\}")
"""${NAME[@]+"${NAME[@]}"}, which is ${NAME[@]} also for a shell that stops at an empty array."""

_IF_SET = re.compile(r"\$\{(\w+):?\+([^{}]*)\}")
"""${NAME:+WORDS}, which stands for the words if NAME has a value."""

_TOKEN = re.compile(
    r"""(?P<line>\n) | [^\S\n]+ | (?<!\S)\#[^\n]*
    | '(?P<single>[^']*)' | "(?P<double>[^"\\]*(?:\\.[^"\\]*)*)" | \\(?P<escaped>.)
    | (?P<plain>[^\s'"\\]+) | (?P<open>['"\\])""",
    re.DOTALL | re.VERBOSE,
)
"""Parts of a script: the end of a line, space, a comment, and the parts of a word."""

_CONTINUED = re.compile(r"\\(?:[ \t]+#[^\n]*)?[ \t]*\r?\n")
"""The end of a line that goes on. vLLM's docs have comments there, which Bash would not read so."""

LONGEST_SCRIPT = 1_000_000
"""Characters of a script with its arrays replaced."""

MOST_FAILURES = 100
"""Attempts to read an object that may fail, each of which may read to the end of the text."""

_ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)=([^\s;]*)", re.MULTILINE)


def shell_words(text: str) -> list[str]:
    """Splits a script into words, with `END` between commands.

    A line that begins with a flag continues the one before, with or without a backslash.
    """
    text = _as_bash(_CONTINUED.sub(" ", text.replace("\u00a0", " ")))
    words = _split_lines(text)
    return _split_lines(_with_quoted_objects(text)) if _has_torn_object(words) else words


def words_of_script(script: str) -> list[str]:
    """Returns the words of a script; none if it cannot be split."""
    try:
        return shell_words(script)
    except ValueError:
        return []


def written_files(text: str) -> tuple[str, dict[str, str]]:
    """Returns a script without the files that it writes as here documents, and those files.

    A here document without a file is the input of a command, often a shell, and stays, unless
    `cat` only prints it. One that `$(cat ...)` reads is a word.
    """
    if "<<" not in text:
        return text, {}
    text = _READ.sub(_text_read, text)
    without_printed = _PRINTED.sub("", text)
    text = without_printed if _STARTS.search(without_printed) else text
    lines = text.splitlines()
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(number)
    kept: list[str] = []
    files: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        kept.append(line)
        begin = _HERE.search(line)
        written = _WRITTEN.search(line) if begin else None
        if begin is None or written is None:
            continue
        ends = places.get(begin[2], [])
        next_end = bisect.bisect_left(ends, number)
        if next_end < len(ends):
            files[written[1]] = "\n".join(lines[number : ends[next_end]]) + "\n"
            kept[-1] = _HERE.sub("", line)
            number = ends[next_end] + 1
    return "\n".join(kept), files


def _text_read(match: re.Match[str]) -> str:
    """Returns a here document that a word reads as a quotation."""
    text = match["text"].rstrip("\n")
    return shlex.quote(text) if match["quote"] else _in_double_quotes(text)


def _text_formatted(match: re.Match[str]) -> str:
    """Returns what `printf` makes of variables as a quotation that has them."""
    words = re.findall(r"\w+", match["words"])
    fields = re.findall(r"%.?", match["format"])
    if len(words) != len(fields) or not {*fields} <= {"%s", "%d"}:
        return match[0]
    names = iter(words)
    text = re.sub(r"%[sd]", lambda part: f"${{{next(names)}}}", match["format"])
    return _in_double_quotes(text)


def _in_double_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _split_lines(text: str) -> list[str]:
    """Splits as Bash does, except that it replaces no variables; `END` begins each line."""
    words: list[str] = []
    parts: list[str] = []
    is_word = False  # an empty quotation is a word without parts
    begins_line = True
    for token in (*_TOKEN.finditer(text), None):
        kind = token.lastgroup if token is not None else None
        if token is not None and kind not in ("line", None):
            if kind == "open":
                raise ValueError("a quotation without an end")
            part = token[kind]
            parts.append(re.sub(r"\\([\"\\])", r"\1", part) if kind == "double" else part)
            is_word = True
            continue
        if is_word:
            word = "".join(parts)
            if begins_line and not word.startswith("-"):
                words.append(END)
            words.append(word)
            parts = []
            is_word = False
            begins_line = False
        begins_line = begins_line or kind == "line"
    return words


def _as_bash(text: str) -> str:
    """Returns a script with its lines joined, and its arrays and conditional words replaced.

    PowerShell continues a line with a backtick and cmd with ^.
    """
    text = re.sub(r"[ \t][`^][ \t]*\r?\n", " ", text)
    text = _FORMATTED.sub(_text_formatted, text)
    text = _SET_UNLESS_SET.sub(r'\1="${\1:-\2}"', text)
    text = _ELEMENTS_IF_SET.sub(r'"${\1[@]}"', text)
    arrays = set(_ARRAY_NAME.findall(text))
    text = with_closed_words(with_decided_branches(text))
    # An array that only branches fill that are not taken is empty.
    elements: dict[str, list[str]] = {name: [] for name in arrays - {*_ARRAY_NAME.findall(text)}}
    for name, is_added, words in _ARRAY.findall(text):
        if not is_added:
            elements[name] = []
        elements.setdefault(name, []).extend(_elements(words))
    without_arrays = _ARRAY.sub("", text) if elements else text
    joined = {name: shlex.join(words) for name, words in elements.items()}
    length = len(text)

    def replaced(match: re.Match[str]) -> str:
        nonlocal length
        words = joined.get(match[1], match[0])
        length += len(words)
        if length > LONGEST_SCRIPT:
            raise OutriderError(
                f"--from-serve-command: the array {match[1]} makes the script longer than"
                f" {LONGEST_SCRIPT} characters; write the command with its flags"
            )
        return words

    return _with_conditional_words(_ELEMENTS.sub(replaced, without_arrays))


def with_closed_words(text: str) -> str:
    """Returns a text without the spaces in $(command) and the like, which are one word each."""
    return _SPACED.sub(lambda match: re.sub(r"\s", "", match[0]), text)


def _elements(words: str) -> list[str]:
    try:
        return [word for word in _split_lines(words) if word != END]
    except ValueError:
        return words.split()


def _with_conditional_words(text: str) -> str:
    """Replaces ${NAME:+WORDS} where the script sets NAME to plain text; others stay."""
    values = dict(_ASSIGNED.findall(text))

    def words(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None or "$" in value or "`" in value:
            return match[0]
        return match[2] if value.strip("'\"") else ""

    return _IF_SET.sub(words, text)


def _has_torn_object(words: list[str]) -> bool:
    """Whether a word begins an object that goes on in the next, as in what `ps` shows."""
    return any(re.match(r"(?:--[\w-]+=)?\{\w", word) for word in words)


def _with_quoted_objects(text: str) -> str:
    """Quotes the objects that begin a word outside quotation marks; `ps` shows them without."""
    pieces: list[str] = []
    at = 0
    quote = ""
    failures = 0
    while at < len(text):
        mark = text[at]
        begins_word = not pieces or pieces[-1][-1:] in " \t\n="
        may_begin = not quote and begins_word and failures < MOST_FAILURES
        if may_begin and re.match(r"\{\s*\"", text[at : at + 9]):
            end = end_of_object(text, at)
            failures += end == at
            if end > at:
                pieces.append(shlex.quote(text[at:end]))
                at = end
                continue
        if mark == "\\" and quote != "'":
            pieces.append(text[at : at + 2])
            at += 2
            continue
        if mark in "'\"" and quote in ("", mark):
            quote = "" if quote else mark
        pieces.append(mark)
        at += 1
    return "".join(pieces)


def end_of_object(text: str, begin: int) -> int:
    """Returns where the JSON object ends that begins at a place; that place without one."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return begin
    return end
