"""Commands of containers that `gcloud` starts, whose flags are lists in one word.

    words_of_gcloud(["gcloud", "run", "deploy", "--args=^;^--model=org/m;--max-num-seqs=64", ...])
    # ["docker", "run", "vllm/vllm-openai:v0.32.0", "--model=org/m", "--max-num-seqs=64"]

A list is separated by commas, or by what is between two `^` at its beginning (`gcloud topic
escaping`). Vertex AI's flags begin with `container-`, those of Cloud Run do not.
"""

import re
from collections.abc import Sequence

from outrider.serving.commands.forms.documents import is_image
from outrider.serving.commands.forms.variables import IMAGE_USED

_FLAG = re.compile(
    r"--(?:container-)?(image-uri|image|command|args|env-vars|set-env-vars)=(.*)", re.DOTALL
)
_DELIMITED = re.compile(r"\^([^^]+)\^(.*)", re.DOTALL)


def words_of_gcloud(words: Sequence[str]) -> list[str]:
    """Returns the words of the container's command; empty if no `gcloud` sets one."""
    if "gcloud" not in words:
        return []
    lists: dict[str, list[str]] = {}
    for word in words[words.index("gcloud") :]:
        flag = _FLAG.fullmatch(word)
        if flag is not None:
            name = flag[1].removesuffix("-uri").removeprefix("set-")
            lists[name] = [flag[2]] if name == "image" else _items(flag[2])
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
