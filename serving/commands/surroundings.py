"""A file with a serve command, completed with what other files and its other parts set.

complete_text("services: ...", Path("deploy"))    # with the values of deploy/.env
"""

from collections.abc import Mapping
from typing import Any

import yaml

from outrider.serving.commands.forms import hcl, slurm
from outrider.serving.commands.forms.compose import completed_compose
from outrider.serving.commands.forms.documents import LONGEST_TEXT, documents_in
from outrider.serving.commands.forms.pasted import strip_paste_marks
from outrider.serving.commands.forms.templates import with_vars
from outrider.serving.commands.forms.terminals import (
    is_terminal,
    printed_file,
    typed_in,
    with_prompts,
)
from outrider.serving.commands.forms.variable_files import Folder, with_files

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def complete_text(text: str, folder: Folder | None) -> str:
    """Returns a text with what its surroundings set; without a folder no file is read."""
    if len(text) > LONGEST_TEXT:
        return text
    text = strip_paste_marks(text)
    if is_terminal(text):
        return _completed_terminal(text)
    text = slurm.with_variables(hcl.with_values(text, folder))
    if folder is not None:
        text = with_files(text, folder)
    if "services:" in text or "{{" in text or '"services"' in text:
        text = _with_documents(text, folder)
    return text


def _completed_terminal(text: str) -> str:
    """Completes each command and file that a terminal shows with the other files."""
    typed = list(typed_in(text))
    files = {name: one.printed for one in typed if (name := printed_file(one.command))}
    return "\n".join(
        f"$ {with_prompts(complete_text(command, files))}\n{complete_text(printed, files)}"
        for command, printed in typed
    )


def _with_documents(text: str, folder: Folder | None) -> str:
    """Completes Compose files and Ansible's; any other text stays as it is."""
    documents = documents_in(text)
    try:
        changed = [_completed_document(document, folder) for document in documents]
        if changed == documents:
            return text
        return yaml.dump_all(changed, Dumper=_DUMPER, sort_keys=False, width=LONGEST_TEXT)
    except RecursionError:  # a list in a thousand others
        return text


def _completed_document(document: Any, folder: Folder | None) -> Any:
    if isinstance(document, Mapping) and isinstance(document.get("services"), Mapping):
        return completed_compose(document, folder)
    return with_vars(document, folder)
