"""The branches of a shell script that its own variables decide.

    with_decided_branches('A=1\nif [ "$A" = 1 ]; then\n  B=2\nfi')      # "A=1\n  B=2"

`case` is read in the same way, from a value to the first pattern that matches it.

A condition is decided if it compares texts or integers, looks for an empty text, or is a variable
with `true` or `false`, and the script gives its variables a value, such as `${DEBUG:-0}`. All
branches of any other condition stay.
"""

import fnmatch
import re
import shlex
from dataclasses import dataclass

from outrider.serving.commands.forms.variables import VARIABLE, expand_variables

_IF = re.compile(r"if[ \t]+(.+?)[ \t]*(?:;[ \t]*then)?")
_ELIF = re.compile(r"elif[ \t]+(.+?)[ \t]*(?:;[ \t]*then)?")
_ONE_LINE = re.compile(
    r"^[ \t]*if[ \t][^\n]{1,500};[ \t]*then[ \t][^\n]{1,500}\bfi[ \t]*$", re.MULTILINE
)
_PART = re.compile(r";?[ \t]*\b(then|else|fi)\b[ \t]*")
_AND = re.compile(r"(\[\[?[ \t].+?[ \t]\]\]?)[ \t]*&&[ \t]*(.+)")
_TEST = re.compile(r"\[\[?[ \t]+(.+?)[ \t]+\]\]?")
_OPERAND = r"\$?\{?([A-Za-z_]\w*|(?<![${])\d{1,12})\}?"
_ARITHMETIC = re.compile(
    rf"\(\([ \t]*{_OPERAND}[ \t]*(?:(==|!=|>=|<=|>|<)[ \t]*{_OPERAND}[ \t]*)?\)\)"
)
"""((A)) and ((A > B)), of names or integers; $1 is neither."""

_TRUTH = re.compile(r"\"?\$\{?(\w+)\}?\"?")
"""A variable that holds the command `true` or `false`."""

_ASSIGNED = re.compile(
    r"(?:(?:export|local|readonly|declare)[ \t]+)?([A-Za-z_]\w*)=(\S*|\".*\"|'.*')"
)
_LOOP = re.compile(r"(?:for|while|until)\b")
_END_OF_LOOP = re.compile(r"done\b")
_CASE = re.compile(r"case[ \t]+(\S+)[ \t]+in(?:[ \t]+#.*)?")
_ANY_CASE = re.compile(r"case\b(?!.*\besac\b).*")
_PATTERN = re.compile(r"\(?([^()\s][^()]{0,200}?)[ \t]*\)[ \t]*(.*)")
"""A branch of `case`: its patterns, and what follows them on their line."""

OPTIONS = re.compile(
    r"^[ \t]*while[ \t]+(?:getopts\b"
    r"|[^\n]{0,80}\$(?:#|\{#\})"
    r"|[^\n]{0,80}(?:-n|-z|!=)[ \t]+\"?\$\{?1\b"
    r"|[^\n]{0,80}\$\{?1\b[^\n]{0,12}!=)",
    re.MULTILINE,
)
"""A loop over a script's own arguments."""

_BEGINS_LOOP = re.compile(r"[ \t]*(?:for|while|until)\b")
_ENDS_LOOP = re.compile(r"(?:^|[;\s])done\b")

OF_FURTHER_NODE = "--headless"
"""What a script adds to the command of a further node in a branch that the node's rank decides. The
command that is read is the first node's."""

LONGEST_LINE = 1_000
"""Characters of a line that may begin or end a branch."""

LONGEST_VALUE = 200
"""Characters of a value that is compared."""

_OF_TEXTS = {"=": True, "==": True, "!=": False}
"""Comparisons, and whether equal texts fulfil them."""

_OF_NUMBERS = {
    "-eq": (0,),
    "-ne": (-1, 1),
    "-gt": (1,),
    "-ge": (0, 1),
    "-lt": (-1,),
    "-le": (-1, 0),
}
"""Comparisons of integers, and the signs of the difference that fulfil them."""


_OF_ARITHMETIC = {"==": "-eq", "!=": "-ne", ">": "-gt", ">=": "-ge", "<": "-lt", "<=": "-le"}
"""Comparisons in ((...)), and the same ones in [ ... ]."""


@dataclass
class _Condition:
    """An `if` whose `fi` has not been read yet."""

    is_decided: bool
    is_kept: bool
    """Whether the lines of the current branch stay."""
    was_taken: bool
    """Whether an earlier branch was taken."""
    outer: "_Condition | None"
    """The condition in whose branch this one is."""
    outer_is_read: bool
    outer_is_certain: bool
    is_case: bool = False
    subject: str | None = None
    """The value that `case` compares, if it is known."""
    is_before_pattern: bool = False
    """Whether the next line is one with patterns of `case`."""

    @classmethod
    def of(cls, test: bool | None, outer: "_Condition | None") -> "_Condition":
        """The condition that a test begins."""
        return cls(
            is_decided=test is not None,
            is_kept=test is not False,
            was_taken=bool(test),
            outer=outer,
            outer_is_read=outer is None or outer.is_read,
            outer_is_certain=outer is None or outer.is_certain,
        )

    @classmethod
    def of_case(cls, subject: str | None, outer: "_Condition | None") -> "_Condition":
        """The condition of `case`, whose first branch follows."""
        condition = cls.of(None if subject is None else False, outer)
        condition.is_case = True
        condition.subject = subject
        condition.is_before_pattern = True
        return condition

    def is_in_case(self, words: str) -> bool:
        """Whether a line begins or ends a branch of this `case`, or ends it."""
        begins = self.is_before_pattern and _PATTERN.fullmatch(words) is not None
        return self.is_case and (begins or words.endswith(";;") or words == "esac")

    def compare(self, patterns: str) -> None:
        """Decides whether the branch behind patterns is taken."""
        self.is_before_pattern = False
        if self.subject is not None:
            subject = self.subject
            globs = [glob.strip().strip("'\"") for glob in patterns.split("|")]
            matches = any(fnmatch.fnmatchcase(subject, glob) for glob in globs)
            self.is_kept = matches and not self.was_taken
            self.was_taken = self.was_taken or matches

    @property
    def is_read(self) -> bool:
        """Whether the lines of the current branch, and those around it, stay."""
        return self.is_kept and self.outer_is_read

    @property
    def is_certain(self) -> bool:
        """Whether this condition and those around it are decided."""
        return self.is_decided and self.outer_is_certain


class _Reader:
    """Reads a script line by line, with the variables that it has set so far."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.unknown: set[str] = set()
        """Variables that only an undecided branch sets, so that a default need not count."""
        self.condition: _Condition | None = None
        self.loops = 0

    def kept(self, line: str) -> str | None:
        """The line as far as it stays; None if its branch is not taken."""
        is_long = len(line) > LONGEST_LINE
        words = "" if is_long else line.strip()
        if self.condition is not None and self.condition.is_in_case(words):
            return self._of_case(self.condition, words, line)
        if self.condition is not None and not self.condition.is_read:
            self._of_skipped(words)
            return None
        if is_long:
            return line
        is_certain = self.condition is None or self.condition.is_certain
        is_alone = not re.search(r"\b(?:vllm|if|then|elif|else|fi|case|esac|done)\b|;;", words)
        if not is_certain and OF_FURTHER_NODE in words and is_alone:
            return None
        if begin := _IF.fullmatch(words):
            test = self._value_of(begin[1])
            self.condition = _Condition.of(test, self.condition)
            return line if test is None else None
        if _ANY_CASE.fullmatch(words):
            case = _CASE.fullmatch(words)
            subject = self._known(case[1].strip("'\"")) if case else None
            self.condition = _Condition.of_case(subject, self.condition)
            return line if subject is None else None
        if self.condition is not None and re.match(r"(?:then|elif|else|fi)\b", words):
            return self._of_branch(self.condition, line, words)
        if guarded := _AND.fullmatch(words):
            test = self._value_of(guarded[1])
            if test is None:
                return self._guarded(guarded)
            return self._assigned(guarded[2]) if test else None
        return self._assigned(line)

    def _guarded(self, guarded: re.Match[str]) -> str:
        """A command behind a test that is not decided, on a line of its own."""
        if assigned := _ASSIGNED.fullmatch(guarded[2]):
            self._forget(assigned[1])
        return f"{guarded[1]} &&\n{guarded[2]}"

    def _of_case(self, condition: _Condition, words: str, line: str) -> str | None:
        """Reads a line that begins or ends a branch of `case`, or its end."""
        if words == "esac":
            self.condition = condition.outer
            return None if condition.is_decided else line
        branch = _PATTERN.fullmatch(words) if condition.is_before_pattern else None
        if branch is None:
            return self._of_end(condition, words, line)
        return self._of_pattern(condition, branch, line)

    def _of_pattern(self, condition: _Condition, branch: re.Match[str], line: str) -> str | None:
        """Reads the line that begins a branch of `case`."""
        patterns, rest = branch.groups()
        condition.compare(patterns)
        statements = [rest.removesuffix(";;").strip()]
        parts = [part.strip() for part in statements[0].split(";")]
        if all(map(_ASSIGNED.fullmatch, parts)):
            statements = parts
        lines = [self.kept(statement) for statement in statements if statement]
        condition.is_before_pattern = rest.endswith(";;")
        if condition.subject is None and condition.is_read:
            return line
        return "\n".join(kept_line for kept_line in lines if kept_line is not None) or None

    def _of_end(self, condition: _Condition, words: str, line: str) -> str | None:
        """Reads a line that ends a branch of `case`."""
        last = words.removesuffix(";;").strip()
        kept_line = self.kept(last) if last else None
        condition.is_before_pattern = True
        return line if condition.subject is None and condition.is_read else kept_line

    def _of_branch(self, condition: _Condition, line: str, words: str) -> str | None:
        """Reads the line of a `then`, `elif`, `else` or `fi`."""
        if re.match(r"fi\b", words):
            self.condition = condition.outer
            if words.endswith(";;") and condition.outer is not None:
                condition.outer.is_before_pattern = True
            return None if condition.is_decided else line
        if not condition.is_decided:
            return line
        if re.match(r"else\b", words):
            condition.is_kept = not condition.was_taken
        elif other := _ELIF.fullmatch(words):
            test = False if condition.was_taken else self._value_of(other[1])
            condition.is_kept = test is not False
            condition.was_taken = condition.was_taken or bool(test)
        return None

    def _of_skipped(self, words: str) -> None:
        """Reads a line of a branch that is not taken, for the end of the branch."""
        if _IF.fullmatch(words):
            self.condition = _Condition.of(False, self.condition)
        elif _ANY_CASE.fullmatch(words):
            self.condition = _Condition.of_case("", self.condition)
        elif self.condition is not None and re.match(r"(?:elif|else|fi)\b", words):
            self._of_branch(self.condition, words, words)

    def _assigned(self, line: str) -> str:
        """Sets the variable that a line assigns; one in an undecided branch has no value."""
        words = line.strip()
        self.loops += bool(_LOOP.match(words)) - bool(_END_OF_LOOP.match(words))
        if assigned := _ASSIGNED.fullmatch(words):
            is_certain = self.loops <= 0 and (self.condition is None or self.condition.is_certain)
            is_certain = is_certain and not self.unknown.intersection(_names_in(assigned[2]))
            value = expand_variables(assigned[2].strip("'\""), self.variables)
            if is_certain and len(value) <= LONGEST_VALUE and not re.search(r"[$`]", value):
                self.variables[assigned[1]] = value
                self.unknown.discard(assigned[1])
            else:
                self._forget(assigned[1])
        return line

    def _forget(self, name: str) -> None:
        self.variables.pop(name, None)
        self.unknown.add(name)

    def _known(self, word: str) -> str | None:
        """The value of a word; None if it is not known."""
        if self.unknown.intersection(_names_in(word)):
            return None
        value = expand_variables(word, self.variables)
        return None if re.search(r"[$`]", value) else value

    def _value_of(self, test: str) -> bool | None:
        """Whether a test is fulfilled; None if that is not known."""
        test = test.strip()
        if arithmetic := _ARITHMETIC.fullmatch(test):
            left, comparison, right = arithmetic.groups(default="")
            return _of_numbers(
                self.variables.get(left, left),
                _OF_ARITHMETIC[comparison or "!="],
                self.variables.get(right, right) or "0",
            )
        if truth := _TRUTH.fullmatch(test):
            return {"true": True, "false": False}.get(self.variables.get(truth[1], ""))
        inner = _TEST.fullmatch(test)
        if inner is None:
            return None
        try:
            words = shlex.split(inner[1])
        except ValueError:
            return None
        for word in words:
            names = _names_in(word)
            if self.unknown.intersection(names):
                return None
            has_default = [match["default"] is not None for match in VARIABLE.finditer(word)]
            if any(
                name not in self.variables and not default
                for name, default in zip(names, has_default, strict=True)
            ):
                return None
        return _compared([expand_variables(word, self.variables) for word in words])


def _names_in(text: str) -> list[str]:
    """The variables in a text."""
    return [match["plain"] or match["braces"] for match in VARIABLE.finditer(text)]


def _without_option_loops(script: str) -> str:
    """Returns a script without the loops that read its own arguments, of which a file knows none.

    They are `while getopts ...` and `while [ $# -gt 0 ]`, up to their `done`. One that starts a
    server stays.
    """
    if not OPTIONS.search(script):
        return script
    lines = script.split("\n")
    ends = _ends_of_loops(lines)
    kept: list[str] = []
    at = 0
    while at < len(lines):
        end = ends.get(at) if OPTIONS.match(lines[at]) else None
        if end is None or any("vllm" in line for line in lines[at : end + 1]):
            kept.append(lines[at])
            at += 1
        else:
            at = end + 1
    return "\n".join(kept)


def _ends_of_loops(lines: list[str]) -> dict[int, int]:
    """The line of each loop's `done`, by the line that begins the loop."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    for at, line in enumerate(lines):
        if _BEGINS_LOOP.match(line):
            begun.append(at)
        if begun and _ENDS_LOOP.search(line):
            ends[begun.pop()] = at
    return ends


def with_decided_branches(script: str) -> str:
    """Returns a script without the branches that its variables rule out."""
    script = _without_option_loops(script)
    if not re.search(r"^[ \t]*(?:if[ \t]|case[ \t]|\[)", script, re.MULTILINE):
        return script
    lines = _ONE_LINE.sub(lambda line: _PART.sub(r"\n\1\n", line[0]), script)
    joined = re.sub(r"(?:;[ \t]{0,20})?\n[ \t]{0,80}then\b", "; then", lines)
    reader = _Reader()
    kept_lines = [reader.kept(line) for line in joined.split("\n")]
    return "\n".join(line for line in kept_lines if line is not None)


def _compared(words: list[str]) -> bool | None:
    """Whether the comparison that a test's words make is fulfilled; None for other tests."""
    if any("$" in word or "`" in word or word in ("&&", "||") for word in words):
        return None
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 1:
        return words[0] != ""
    if len(words) != 3:
        return None
    left, comparison, right = words
    if comparison in _OF_TEXTS and "*" not in right:
        return (left == right) == _OF_TEXTS[comparison]
    return _of_numbers(left, comparison, right)


def _of_numbers(left: str, comparison: str, right: str) -> bool | None:
    """Whether a comparison of integers is fulfilled; None for other words."""
    integers = all(re.fullmatch(r"-?\d{1,12}", word) for word in (left, right))
    if comparison not in _OF_NUMBERS or not integers:
        return None
    difference = int(left) - int(right)
    sign = (difference > 0) - (difference < 0)
    return sign in _OF_NUMBERS[comparison]
