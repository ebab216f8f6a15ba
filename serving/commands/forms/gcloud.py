"""Commands of containers that `gcloud` starts, whose flags are lists in one word.

    words_of_gcloud(["gcloud", "run", "deploy", "--command=vllm,serve",
                     "--args=^;^--model=org/m;--max-num-seqs=64"])
    # yields ["vllm", "serve", "--model=org/m", "--max-num-seqs=64"]

A list is separated by commas, or by what is between two `^` at its beginning (`gcloud topic
escaping`). Vertex AI's flags begin with `container-`, those of Cloud Run do not.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

from outrider.serving.commands.forms.documents import is_image
from outrider.serving.commands.forms.shell import END
from outrider.serving.commands.forms.variables import IMAGE_USED

_FLAG = re.compile(
    r"--(?:container-)?(image-uri|image|command|args|env-vars|set-env-vars)(?:=(.*))?", re.DOTALL
)
_DELIMITED = re.compile(r"\^([^^]+)\^(.*)", re.DOTALL)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

CONTAINER = "--container"
"""The flag of Cloud Run behind which a container's flags are."""

OPERATORS = frozenset({END, ";", "&&", "||", "|", "&"})


def words_of_gcloud(words: Sequence[str]) -> Iterator[list[str]]:
    """Yields the words of the container's command of each `gcloud` that sets its arguments.

    The variables that the script sets before are their first words.
    """
    command: list[str] = []
    assigned: list[str] = []
    of_gcloud = False
    for word in [*words, END]:
        begins = word in OPERATORS or word.partition("=")[0] == CONTAINER
        if not begins:
            command.append(word)
            of_gcloud = of_gcloud or word == "gcloud"
            continue
        if of_gcloud and (of_container := _words_of_container(command)):
            yield [*assigned, *of_container]
        assigned += itertools.takewhile(_ASSIGNMENT.match, command)
        command = []
        of_gcloud = of_gcloud and word not in OPERATORS


def _words_of_container(words: Sequence[str]) -> list[str]:
    lists: dict[str, list[str]] = {}
    for index, word in enumerate(words):
        flag = _FLAG.fullmatch(word)
        if flag is not None:
            value = "".join(words[index + 1 : index + 2]) if flag[2] is None else flag[2]
            name = flag[1].removesuffix("-uri").removeprefix("set-")
            lists[name] = [value] if name == "image" else _items(value)
    arguments = lists.get("args", [])
    image = "".join(lists.get("image", []))
    program = lists.get("command") or (["docker", "run", image] if is_image(image) else [])
    if not arguments or not program:
        return []
    of_image = [f"{IMAGE_USED}={image}"] if image else []
    return [*lists.get("env-vars", []), *of_image, *program, *arguments]


def _items(value: str) -> list[str]:
    delimited = _DELIMITED.fullmatch(value)
    separator, items = delimited.groups() if delimited else (",", value)
    return items.split(separator)
