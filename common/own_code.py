"""A recipe's own code: a function that a key names as `module:function`.

    code_file("my_checks:solved", key="eval.task")        # its file; runs none of its code
    load_function("my_checks:solved", key="eval.task")    # imports it

Modules in the current folder are found, after all installed ones.
"""

import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError

_NAME_A_FUNCTION = (
    "name a module:function, such as my_checks.resumes:verdict_correct, that is installed or in the"
    " current folder"
)


def code_file(name: str, key: str) -> str:
    """Returns the file of the function that `key` names, without running any of its code."""
    module = name.partition(":")[0]
    package, *inner = module.split(".")
    if package == __package__.partition(".")[0]:
        # find_spec imports the parents of a dotted name; here they are Outrider's own packages.
        package = module
        inner = []
    try:
        spec = importlib.util.find_spec(package) or PathFinder.find_spec(package, [str(Path.cwd())])
    except (ImportError, ValueError):  # ValueError: an empty name
        spec = None
    for part in inner:
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(part, folders) if folders else None
    if spec is None:
        raise OutriderError(f"{key} = {name!r}: No module named {module!r}; {_NAME_A_FUNCTION}")
    return spec.origin or module


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Imports the function that `key` names."""
    if str(Path.cwd()) not in sys.path:  # missing when run as a console script
        # Last: a file in the current folder must not replace an installed module.
        sys.path.append(str(Path.cwd()))
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OutriderError(f"{key} = {name!r}: {error}; {_NAME_A_FUNCTION}") from error
    if not callable(function):
        raise OutriderError(f"{key} = {name!r}: not a function; name a module:function")
    return function
