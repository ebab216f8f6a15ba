"""Gives Triton a backend named `cpu` in every interpreter that starts with this folder."""

from triton import backends


class _Driver:
    """What vLLM asks of a Triton backend's driver."""

    @staticmethod
    def is_active() -> bool:
        return True


backends.backends["cpu"] = backends.Backend(None, _Driver)


def _with_boolean_masks() -> None:
    """Lets the interpreter load where a scalar condition is part of a mask.

    A scalar of one bit is an int8 array in Triton's interpreter, which makes the mask one, and its
    `load` takes booleans only: vllm/v1/worker/gpu/spec_decode/ngram/speculator.py:137 needs it.
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    load = InterpreterBuilder.create_masked_load

    def create_masked_load(self, ptrs, mask, *args):  # type: ignore[no-untyped-def]
        return load(self, ptrs, TensorHandle(mask.data.astype(bool), mask.dtype), *args)

    InterpreterBuilder.create_masked_load = create_masked_load


_with_boolean_masks()
