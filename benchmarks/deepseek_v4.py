"""Tokens per second of the emulated tiny DeepSeek-V4, beside transformers' `generate` on it.

    .venv/bin/python benchmarks/deepseek_v4.py [override …]

As benchmarks/emulation.py, for `deepseek_v4_a3` in float32, the one type that transformers computes
this model in, and without the drafter, which it does not have: both do the same work.
"""

import sys

from emulation import report

SAME_WORK = (
    *("quant=none", "checkpoint.variant=bf16", "drafter=none"),
    *("device.relaxed=[dtype.float32]", "checkpoint.dtype=float32"),
)


def main() -> None:
    """Measure both and print the ratio."""
    report("deepseek_v4_a3", [*SAME_WORK, *sys.argv[1:]])


if __name__ == "__main__":
    main()
