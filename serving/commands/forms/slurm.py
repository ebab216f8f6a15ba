"""Variables that Slurm sets in a batch script, from the options of its `#SBATCH` lines."""

import re

_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)")


def with_variables(text: str) -> str:
    """Sets the variables of Slurm that a batch script uses and that its options decide."""
    options: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        for name, value in re.findall(r"(--[\w-]+|-[A-Za-z])(?:=|[ \t]+|(?=\d))([^\s#]+)", line):
            options[name] = value
    nodes = options.get("--nodes") or options.get("-N") or ""
    per_node = options.get("--gpus-per-node", "")
    on_node = _GPUS.fullmatch(per_node or options.get("--gres", ""))
    values = {
        "SLURM_NNODES": nodes if nodes.isdigit() else "",
        "SLURM_JOB_NUM_NODES": nodes if nodes.isdigit() else "",
        "SLURM_GPUS_PER_NODE": per_node,
        "SLURM_GPUS_ON_NODE": on_node[1] if on_node else "",
        "SLURM_GPUS": options.get("--gpus") or options.get("-G") or "",
        "SLURM_NTASKS": options.get("--ntasks") or options.get("-n") or "",
        "SLURM_NTASKS_PER_NODE": options.get("--ntasks-per-node", ""),
        # Those of the first node, whose command is the engine's.
        "SLURM_NODEID": "0" if nodes else "",
        "SLURM_PROCID": "0" if nodes else "",
        "SLURM_CPUS_PER_TASK": options.get("--cpus-per-task") or options.get("-c") or "",
    }
    lines = [
        f"{name}={value}"
        for name, value in values.items()
        if value and re.search(rf"\b{name}\b", text)
    ]
    return "\n".join([*lines, text]) if lines else text
