"""YAML templates: Envoy's configuration and the Kubernetes manifests."""

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render_template(name: str, /, **values: object) -> str:
    """Renders the template `name`; the `yaml` filter writes single-line values."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = json.dumps  # JSON is valid YAML and quotes every string
    return environment.get_template(name).render(**values)
