"""From an instruction to a function that carries it out on all lanes.

Each family of instructions registers its decoders with `@instruction`. A decoder reads the form once and returns an effect;
operands are permanent NumPy views of registers, so that running an effect is little more than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from attngen.backends.cuda.ptx.errors import PtxError, Unsupported, shorten
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.memory import WINDOWS
from attngen.backends.cuda.ptx.modifiers import Modifiers
from attngen.backends.cuda.ptx.syntax import (
    Immediate,
    Instruction,
    Memory,
    Not,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from attngen.backends.cuda.ptx.types import PRED, S64, SIGNED, UNSIGNED, Array, Type

Effect: TypeAlias = Callable[[], None]
Store: TypeAlias = Callable[[Array], None]
Taken: TypeAlias = Callable[[Array], None]
"""The effect of an instruction that decides where lanes go next; it is given the mask of lanes whose guard holds."""


@dataclass(frozen=True)
class Decoded:
    """control: `effect` moves program counters or blocks lanes."""

    effect: Effect
    control: bool


DECODERS: dict[str, Callable[[Decoder], Effect]] = {}
CONTROL: dict[str, Callable[[Decoder], Taken]] = {}


def instruction(*opcodes: str) -> Callable[[Callable[[Decoder], Effect]], Callable[[Decoder], Effect]]:
    """Register the decoder of these opcodes."""

    def register(f: Callable[[Decoder], Effect]) -> Callable[[Decoder], Effect]:
        DECODERS.update(dict.fromkeys(opcodes, f))
        return f

    return register


def control(*opcodes: str) -> Callable[[Callable[[Decoder], Taken]], Callable[[Decoder], Taken]]:
    """Register the decoder of opcodes that end a basic block. `mbarrier.try_wait` names an opcode with its first modifier."""

    def register(f: Callable[[Decoder], Taken]) -> Callable[[Decoder], Taken]:
        CONTROL.update(dict.fromkeys(opcodes, f))
        return f

    return register


def is_control(i: Instruction) -> bool:
    return i.opcode in CONTROL or ".".join((i.opcode, *i.modifiers[:1])) in CONTROL


class Decoder:
    """One instruction in one machine: gives decoders their modifiers and operands."""

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine, self.index = machine, index
        self.i = machine.program.code[index]
        self.modifiers = Modifiers(self.i)
        self.operands = self.i.operands

    def decode(self) -> Decoded:
        """The effect, guard included, or `Unsupported` naming what is not known."""
        i = self.i
        guard = None if i.guard is None else self.predicate(i.guard)
        try:
            if is_control(i):
                taken = CONTROL.get(i.opcode) or CONTROL[".".join((i.opcode, *i.modifiers[:1]))]
                effect = self.branching(taken(self), guard)
            elif i.opcode in DECODERS:
                effect = self.guarded(self.machine.flights.watch(i, DECODERS[i.opcode](self)), guard)
            else:
                raise Unsupported(
                    f"the instruction {i.opcode} is not known to the interpreter\n  in `{shorten(i.text)}`", i.loc
                )
        except IndexError:
            raise PtxError(f"{i.name}: operands are missing in `{shorten(i.text)}`", i.loc) from None
        except KeyError:
            # A table of forms has no entry for the words that were given.
            raise self.modifiers.refused("the form") from None
        self.modifiers.end()
        return Decoded(effect, is_control(i))

    def branching(self, taken: Taken, guard: Callable[[], Array] | None) -> Effect:
        m, following = self.machine, self.index + 1

        def effect() -> None:
            chosen = m.active if guard is None else m.active & guard()
            m.pc[m.active] = following
            if chosen.any():
                taken(chosen)

        return effect

    def guarded(self, effect: Effect, guard: Callable[[], Array] | None) -> Effect:
        if guard is None:
            return effect
        m = self.machine

        def run() -> None:
            chosen = guard() & m.active
            if chosen.any():
                before = m.active
                m.activate(chosen)
                effect()
                m.activate(before)

        return run

    # What follows gives operands.

    def operand(self, n: int) -> Operand:
        return self.operands[n]

    def read(self, operand: Operand | int, t: Type) -> Array:
        """An operand as an array of one element per lane; of a register it is a view that stays current."""
        o = self.operands[operand] if isinstance(operand, int) else operand
        m = self.machine
        match o:
            case Register(name):
                return self.view(name, t)
            case Special(name):
                return m.specials[name].astype(UNSIGNED[max(t.bits, 8)]).view(t.numpy)
            case Immediate():
                return np.broadcast_to(constant(o, t), (m.layout.lanes,))
            case Symbol(name, offset):
                place = m.program.place(name, self.i.loc)
                base = m.addresses[name] if place.space == "global" else place.offset
                return np.broadcast_to(np.array(base + offset).astype(t.numpy), (m.layout.lanes,))
            case _:
                raise PtxError(f"{self.i.name}: expected a register or a constant in `{shorten(self.i.text)}`", self.i.loc)

    def view(self, name: str, t: Type) -> Array:
        register, held = self.register(name), self.machine.program.registers[name]
        if t.kind == "pred" or held.kind == "pred":
            if t.kind != held.kind:
                raise PtxError(
                    f"{name}: a predicate where there is none, or the reverse, in `{shorten(self.i.text)}`", self.i.loc
                )
            return register
        if held.bits == t.bits:
            return register.view(t.numpy)
        if held.bits < t.bits:
            raise PtxError(f"{name} has {held.bits} bits, {t.bits} are needed, in `{shorten(self.i.text)}`", self.i.loc)
        return register.view(UNSIGNED[t.bits])[:: held.bits // t.bits].view(t.numpy)  # the low part

    def register(self, name: str) -> Array:
        if name not in self.machine.registers:
            raise PtxError(f"there is no register {name.partition('#')[0]} in `{shorten(self.i.text)}`", self.i.loc)
        return self.machine.registers[name]

    def predicate(self, operand: Operand | int) -> Callable[[], Array]:
        """A predicate operand, complemented by `!` if it says so."""
        o = self.operands[operand] if isinstance(operand, int) else operand
        if isinstance(o, Not):
            inner = self.read(o.operand, PRED)
            return lambda: ~inner
        held = self.read(o, PRED)
        return lambda: held

    def write(self, operand: Operand | int, t: Type) -> Store:
        """A function that stores values of type t, on active lanes. Wider registers get them extended."""
        o = self.operands[operand] if isinstance(operand, int) else operand
        m = self.machine
        if isinstance(o, Sink):
            return lambda values: None
        if not isinstance(o, Register):
            raise PtxError(f"{self.i.name}: expected a register as result in `{shorten(self.i.text)}`", self.i.loc)
        held = self.machine.program.registers.get(o.name)
        if held is not None and held.bits > t.bits and t.kind != "pred" and held.kind != "pred":
            register = self.register(o.name)
            raw = UNSIGNED[t.bits] if t.kind != "s" else SIGNED[t.bits]
            wide = register.view(UNSIGNED[held.bits] if t.kind != "s" else SIGNED[held.bits])
            return lambda values: np.copyto(wide, values.view(raw), where=m.where)
        target = self.view(o.name, t)
        return lambda values: np.copyto(target, values, where=m.where)

    def parts(self, operand: Operand | int) -> tuple[Operand, ...]:
        """The elements of a vector operand; a scalar is its own only element."""
        o = self.operands[operand] if isinstance(operand, int) else operand
        return o.items if isinstance(o, Vector) else (o,)

    def reads(self, operand: Operand | int, t: Type) -> list[Array]:
        return [self.read(o, t) for o in self.parts(operand)]

    def writes(self, operand: Operand | int, t: Type) -> list[Store]:
        return [self.write(o, t) for o in self.parts(operand)]

    def address(self, operand: Operand | int, space: str = "") -> Callable[[], Array]:
        """Byte addresses of `[base+offset]` on all lanes, as int64. A variable gives its address in `space` or generic."""
        o = self.operands[operand] if isinstance(operand, int) else operand
        base = o.base if isinstance(o, Memory) else o
        extra = o.offset if isinstance(o, Memory) else 0
        m, n = self.machine, self.machine.layout.lanes
        if isinstance(base, Register):
            t = m.program.registers.get(base.name, S64)
            if t.bits == 32:
                narrow = self.view(base.name, t).view(np.uint32)
                return lambda: narrow.astype(np.int64) + extra
            wide = self.view(base.name, S64)
            return (lambda: wide + extra) if extra else (lambda: wide)
        if isinstance(base, Symbol):
            place = m.program.place(base.name, self.i.loc)
            start = m.addresses[base.name] if place.space == "global" else place.offset
            window = WINDOWS.get(place.space, 0) if not space else 0
            fixed = np.broadcast_to(np.array(start + base.offset + extra + window, np.int64), (n,))
            return lambda: fixed
        if isinstance(base, Immediate):
            same = np.broadcast_to(np.array(base.value + extra, np.int64), (n,))
            return lambda: same
        raise PtxError(f"{self.i.name}: expected an address in `{shorten(self.i.text)}`", self.i.loc)


def constant(o: Immediate, t: Type) -> Array:
    """An immediate as a value of type t."""
    if t.kind == "pred":
        return np.array(o.value != 0)
    bits = o.value
    if t.kind == "f" and o.float_bits not in (0, t.bits):
        held = np.array(bits, UNSIGNED[o.float_bits]).view(f"f{o.float_bits // 8}")
        return held.astype(t.numpy)
    return np.array(bits & ((1 << t.bits) - 1), UNSIGNED[t.bits]).view(t.numpy)
