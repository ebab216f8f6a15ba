"""What `--dry-run` assumes about a cluster: the section `cluster.rates` of a recipe."""

from pydantic import BaseModel, ConfigDict, Field


class ClusterRates(BaseModel):
    """Speeds of the cluster that `--dry-run` assumes for its schedule; no other effect.

    Those of capture and training are `capture.tokens_per_s` (one replica) and
    `training.tokens_per_s` (all processes). Take them from a small run on the same nodes.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    network_gb_per_s: float = Field(default=3.0, gt=0)
    """Network into one node, in GB/s, through Ray's object store. The default is assumed: Ethernet
    of 25 Gbit/s. With `cluster.address: local` nothing crosses a network."""

    write_gb_per_s: float = Field(default=1.0, gt=0)
    """Writing of the feature store by the command's process, with checksums, in GB/s; assumed."""

    read_gb_per_s: float = Field(default=2.0, gt=0)
    """Reading of the feature store by all training processes together, in GB/s; assumed."""

    replica_start_s: float = Field(default=60.0, ge=0)
    """Start of a capture replica with its self-check, in seconds. R1 loads 671 GB of weights."""

    training_start_s: float = Field(default=60.0, ge=0)
    """Start of the training processes, until their first step, in seconds."""
