"""Gives Triton a backend named `cpu` in every interpreter that starts with this folder."""

from triton import backends


class _Driver:
    """What vLLM asks of a Triton backend's driver."""

    @staticmethod
    def is_active() -> bool:
        return True


backends.backends["cpu"] = backends.Backend(None, _Driver)
