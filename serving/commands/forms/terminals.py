"""A terminal's output as a script: the commands that were typed, and what they printed as files.

    as_script("$ cat env\\nTP=8\\n\\n$ vllm serve org/model --tensor-parallel-size $TP\\n")
    # cat > env <<'END_OF_OUTPUT' ... vllm serve org/model ...

A file that `cat` prints has its name, so that a command finds it as one that the script writes.
What any other command prints, such as `systemctl cat` or `docker compose config`, is a file, too.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) )?"  # a virtual environment
    r"(?:"
    r"[\w.-]{1,40}@[\w.-]{1,80}(?:[: ][^\s$#%]{0,200})? ?[$#%]"  # me@host:~/vllm$
    r"|\[[^\]\n]{1,200}\] ?[$#%]"  # [me@host vllm]$
    r"|[~/][^\s$#%]{0,200} ?\$"  # ~/vllm$
    r"|\$"
    r")(?:[ \t]+|$)"
)
"""A shell's prompt. `#` alone begins a comment, too, so it needs a host before it."""

_CONTINUES = re.compile(r"\\[ \t]*$")
_AGAIN = re.compile(r"^>[ \t]?")
"""The prompt of a line that continues a command."""

_PRINTS = re.compile(r"(?:sudo[ \t]+)?(?:cat|less|more|bat)[ \t]+(?:--?\w+[ \t]+)*(\S+)[ \t]*$")

_CUT = re.compile(r"(?:…|\.\.\.)[ \t]*$")

_END = "END_OF_OUTPUT"


class Typed(NamedTuple):
    """A command at a prompt, with what it printed."""

    command: str
    printed: str


def is_terminal(text: str) -> bool:
    """Whether a text begins with a shell's prompt, before a command."""
    first = text.lstrip("\n").partition("\n")[0]
    prompt = _PROMPT.match(first)
    return prompt is not None and prompt.end() < len(first)


def typed_in(text: str) -> Iterator[Typed]:
    """Yields the commands at a terminal's prompts; none for any other text."""
    if not is_terminal(text):
        return
    command: list[str] = []
    printed: list[str] = []
    for line in text.splitlines():
        prompt = _PROMPT.match(line)
        if prompt and command:
            yield Typed("\n".join(command), "\n".join(printed))
        if prompt:
            command = [line[prompt.end() :]]
            printed = []
        elif command and not printed and _CONTINUES.search(command[-1]):
            command.append(_AGAIN.sub("", line))
        else:
            printed.append(line)
    yield Typed("\n".join(command), "\n".join(printed))


def printed_file(command: str) -> str | None:
    """Returns the file that a command prints; None if it does something else."""
    printing = _PRINTS.match(command)
    return printing[1] if printing else None


def as_script(text: str) -> str:
    """Returns a terminal's output as a script; any other text as it is."""
    parts = []
    for number, (command, printed) in enumerate(typed_in(text)):
        name = printed_file(command)
        if name is None:
            parts.append(command)
            name = f"output-{number}"
            # `systemctl status` and `ps` cut what is wider than the terminal.
            printed = "\n".join(line for line in printed.splitlines() if not _CUT.search(line))
        if printed.strip():
            parts.append(f"cat > {name} <<'{_END}'\n{printed.strip()}\n{_END}")
    return "\n".join(parts) if parts else text
