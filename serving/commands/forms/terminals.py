"""A terminal's output as a script: the commands that were typed, and what they printed as files.

    as_script("$ cat env\\nTP=8\\n\\n$ vllm serve org/model --tensor-parallel-size $TP\\n")
    # cat > env <<'END_OF_OUTPUT' ... vllm serve org/model ...

A file that `cat` prints has its name, so that a command finds it as one that the script writes.
What any other command prints, such as `systemctl cat` or `docker compose config`, is a file, too.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from outrider.serving.commands.forms.batch import script_of_batch
from outrider.serving.commands.forms.powershell import script_of_powershell

_HOST = r"[\w.-]{1,40}@[\w.-]{1,80}"
_FOLDER = r"[~/][^\s$#%>]{0,200}"
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) )?"  # a virtual environment
    r"(?:"
    rf"{_HOST}(?:[: ][^\s$#%>]{{0,200}})? ?[$#%>]"  # me@host:~/vllm$, me@host ~/vllm> of fish
    r"|\[[^\]\n]{1,200}\] ?[$#%]"  # [me@host vllm]$
    rf"|(?:[\w.-]{{1,40}}:)?{_FOLDER} ?[$#%>]"  # ~/vllm$, gpu:~ # of SUSE, / # of BusyBox
    r"|(?:ba|da|z|k)?sh-\d[\d.]{0,10}[$#]"  # sh-5.1$ in a container
    r"|➜ +[^\s]{1,200}(?: git:\([^)\n]{0,200}\))?(?: ✗)?"  # zsh's theme robbyrussell
    r"|[└╰][─—][^\s\w]{0,5}"  # the second line of └─$ and ╰─❯
    r"|[$%❯λ»➜✗✘]"
    r")(?:[ \t]+|$)"
)
"""A shell's prompt. `#` alone begins a comment, too, so it needs a host or a folder before it."""

_WINDOWS = re.compile(
    r"(?:\([\w.-]{1,40}\) )?"
    r"(?:(?P<powershell>PS )(?:[A-Z]:[\\/][^>\n]{0,200}|[~/][^\s>]{0,200})?>"
    r"|[A-Z]:\\(?:[^>\n]{0,200}[^>\s])?>)[ \t]*"
)
"""A prompt of PowerShell, `PS C:\\vllm> `, or of cmd.exe, `C:\\vllm>`."""

_ABOVE = re.compile(
    rf"(?:[┌╭]|{_HOST}|~\S{{0,200}}(?:$| )|/\S{{0,200}}$|Last login: "
    r"|[\w.-]{1,100} (?:on|in|via) +\S)"
)
"""The first line of a prompt of two lines, with the host, the folder or the branch."""

_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
"""The beginning of a here document, with its last line."""

_CONTINUES = {
    "sh": re.compile(r"\\[ \t]*$"),
    "powershell": re.compile(r"`[ \t]*$"),
    "cmd": re.compile(r"\^[ \t]*$"),
}
_AGAIN = re.compile(r"(?:>|>>|∙|(?:[a-z]{2,10} ){0,3}[a-z]{2,10}>|More\?)(?:[ \t]|$)")
"""The prompt of a line that continues a command: `> `, `dquote> ` of zsh, `>> ` of PowerShell."""

_PRINTS = re.compile(
    r"(?:sudo[ \t]+)?(?:cat|less|more|bat|type|gc|Get-Content)[ \t]+(?:--?\w+[ \t]+)*(\S+)[ \t]*$"
)

_CUT = re.compile(r"(?:…|\.\.\.)[ \t]*$")

_END = "END_OF_OUTPUT"


class Typed(NamedTuple):
    """A command at a prompt, with what it printed."""

    command: str
    printed: str


class _Prompt(NamedTuple):
    """What a line has before a command."""

    length: int
    shell: str


def is_terminal(text: str) -> bool:
    """Whether a text begins with a shell's prompt, before a command."""
    return _lines_of_prompt(text.lstrip("\n").splitlines()[:2]) > 0


def typed_in(text: str) -> Iterator[Typed]:
    """Yields the commands at a terminal's prompts; none for any other text."""
    lines = text.lstrip("\n").splitlines()
    prompt_lines = _lines_of_prompt(lines[:2])
    if not prompt_lines:
        return
    command: list[str] = []
    printed: list[str] = []
    shell = "sh"
    for line in lines:
        prompt = _prompt(line)
        if prompt is None and command and not printed and _goes_on(command, line, shell):
            command.append(_AGAIN.sub("", line))
        elif prompt is None:
            printed.append(line)
        else:
            if prompt_lines > 1 and printed and _ABOVE.match(printed[-1]):
                printed.pop()
            if command:
                yield _typed(command, printed, shell)
            command = [line[prompt.length :]]
            printed = []
            shell = prompt.shell
    yield _typed(command, printed, shell)


def _lines_of_prompt(first: Sequence[str]) -> int:
    """Number of lines of the prompt that a terminal's first lines begin with; 0 for other texts."""
    for number, line in enumerate(first):
        prompt = _prompt(line)
        if prompt is not None:
            return number + 1 if prompt.length < len(line) else 0
        if not _ABOVE.match(line):
            return 0
    return 0


def _prompt(line: str) -> _Prompt | None:
    if match := _WINDOWS.match(line):
        return _Prompt(match.end(), "powershell" if match["powershell"] else "cmd")
    if match := _PROMPT.match(line):
        return _Prompt(match.end(), "sh")
    return None


def _goes_on(command: Sequence[str], line: str, shell: str) -> bool:
    """Whether a line after those of a command is one of it, rather than what it printed."""
    if _CONTINUES[shell].search(command[-1]) or _AGAIN.match(line):
        return True
    here = _HERE.search(command[0])
    return here is not None and here[2] not in command[1:]


def _typed(command: Sequence[str], printed: Sequence[str], shell: str) -> Typed:
    script = "\n".join(command)
    if shell == "powershell":
        script = script_of_powershell(script)
    elif shell == "cmd":
        script = script_of_batch(f"@echo off\n{script}")
    return Typed(script, "\n".join(printed))


def printed_file(command: str) -> str | None:
    """Returns the file that a command prints; None if it does something else."""
    printing = _PRINTS.match(command)
    return printing[1] if printing else None


def with_prompts(command: str) -> str:
    """Returns a command as a terminal shows it: with a prompt before each further line."""
    return command.replace("\n", "\n> ")


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
