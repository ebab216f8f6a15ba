"""What a serve command's file leaves open, what sets it, and what to do.

why_unresolved("vllm serve m -tp $SLURM_GPUS_ON_NODE", ["$SLURM_GPUS_ON_NODE"])
# "$SLURM_GPUS_ON_NODE: contains a shell variable; replace it ... (Slurm sets it ...)"
"""

import re
from collections.abc import Iterator

from outrider.common.redaction import redact
from outrider.serving.commands.forms.templates import EXPRESSION
from outrider.serving.commands.forms.variable_files import missing_files
from outrider.serving.commands.forms.variables import VARIABLE

UNRESOLVED = re.compile(r"\$[({\w@*]|`|\{\{|%\(\w+\)s|\A@\w+\Z")
"""What a shell, a template, supervisor (%(ENV_NAME)s) or PowerShell (@Name) would still replace."""

SETTERS = {
    "SLURM_": "Slurm sets it from the options of the job",
    "SKYPILOT_": "SkyPilot sets it from resources.accelerators and num_nodes",
    "DSTACK_": "dstack sets it from resources.gpu and nodes",
    "LWS_": "LeaderWorkerSet sets it, LWS_GROUP_SIZE from leaderWorkerTemplate.size",
    "POD_": "Kubernetes sets it when the pod starts",
    "RUNPOD_": "RunPod sets it on its machines",
}
"""Beginnings of variables that a platform sets, and from what."""


OF_KUSTOMIZE = "what it makes: kubectl kustomize FOLDER > rendered.yaml"

RENDERED = {
    r"(?m)^(?:from|import) \w[\w.]*": "the line that vLLM logs at its start, non-default args",
    r"(?m)^[ \t]*resource[ \t]+\"": (
        "what Terraform makes of this: kubectl get deployment NAME -o yaml, or docker inspect NAME"
    ),
    r"\{\{-?[ \t]*(?:\.Values|\.Release|include)\b": "what `helm template` prints",
    r"(?m)^[ \t-]*(?:hosts|tasks):|\{%": (
        "what runs on the host: systemctl cat NAME, or docker inspect NAME"
    ),
}
"""Marks of a file that a tool makes another of, and the command that prints it."""


def why_unresolved(text: str, words: list[str]) -> str:
    """Lists each variable without a value as it is written, with what sets it and what to do."""
    first, *further = dict.fromkeys(redact(word) for word in words)
    names = list(dict.fromkeys(_names_in(words)))
    setters = dict.fromkeys(setter for name in names if (setter := _setter_of(name)))
    files = missing_files(text)
    why = f"{first}: contains a shell variable; replace it with its value"
    if further:
        why += f", and in the same way {', '.join(further)}"
    if setters:
        why += f" ({'; '.join(setters)})"
    elif files:
        which = ", ".join(files)
        why += (
            f", or put the file that sets {', '.join(names) or 'them'} next to this one"
            f" ({which}: not here)"
        )
    elif "services:" in text:
        why += ", or put Compose's .env next to this file"
    rendered = next((how for mark, how in RENDERED.items() if re.search(mark, text)), None)
    return f"{why}, or give {rendered}" if rendered else why


def _setter_of(name: str) -> str | None:
    """Returns what sets a platform's variable; None for any other."""
    return next((words for prefix, words in SETTERS.items() if name.startswith(prefix)), None)


def _names_in(words: list[str]) -> Iterator[str]:
    """Yields the names of the variables that words still have."""
    for word in words:
        for match in VARIABLE.finditer(word):
            yield match["plain"] or match["braces"] or match["kube"]
        for expression in re.findall(r"\$\(\((.*?)\)\)", word):
            yield from re.findall(r"[A-Za-z_]\w*", expression)
        for match in EXPRESSION.finditer(word):
            yield match[1]
