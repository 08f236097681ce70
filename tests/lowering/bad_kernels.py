"""Kernels that must not pass: one for each stage and each check."""

import triton
import triton.language as tl


@triton.jit
def unknown_operation(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.operation_of_tomorrow(tl.load(x + place)))


@triton.jit
def addresses_from_memory(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    address = tl.load(x.to(tl.pointer_type(tl.int64)) + place)
    tl.store(address.to(tl.pointer_type(tl.float32)), tl.load(y + place))


@triton.jit
def too_much_memory(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + place, value / tl.sum(value, 0))


@triton.jit
def double_precision(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place).to(tl.float64)
    tl.store(y + place, value * value + 1.0)


@triton.jit
def foreign_assembly(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place)
    value = tl.inline_asm_elementwise("add.s32 $0, $1, 1;", "=r,r", [value], tl.int32, True, 1)
    tl.store(y + place, value)
