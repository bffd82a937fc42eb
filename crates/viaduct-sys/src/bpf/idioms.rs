//! What programs do again and again: look a socket up, keep something for it, copy on the stack.

use super::asm::{Asm, FP, Helper, Label, R0, R1, R2, R3, R4, Reg, Width};
use super::kernel::Numbered;

impl Asm {
    /// to = the address of `at` on the stack.
    pub(super) fn point(&mut self, to: Reg, at: i16) {
        self.copy(to, FP);
        self.add(to, at.into());
    }

    /// The cookie of the socket of the context in `context`, at `at` on the stack.
    pub(super) fn store_cookie(&mut self, context: Reg, at: i16) {
        if context != R1 {
            self.copy(R1, context);
        }
        self.call(Helper::SocketCookie);
        self.store(Width::Double, FP, at, R0);
    }

    /// R0 = where `map` keeps what belongs to the key that is at `key` on the stack; goes to `none` if
    /// there is nothing.
    pub(super) fn look_up(&mut self, map: &dyn Numbered, key: i16, none: Label) {
        self.ask(map, key);
        self.if_nothing(R0, none);
    }

    /// The same; goes to `some` if there is something.
    pub(super) fn look_for(&mut self, map: &dyn Numbered, key: i16, some: Label) {
        self.ask(map, key);
        self.if_something(R0, some);
    }

    fn ask(&mut self, map: &dyn Numbered, key: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.call(Helper::MapLookup);
    }

    /// Puts what is at `value` on the stack into `map`, for the key that is at `key`. R0 = 0, or what is
    /// wrong: it is full.
    pub(super) fn keep(&mut self, map: &dyn Numbered, key: i16, value: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.point(R3, value);
        self.set(R4, 0);
        self.call(Helper::MapUpdate);
    }

    /// Takes what belongs to the key that is at `key` on the stack out of `map`.
    pub(super) fn forget(&mut self, map: &dyn Numbered, key: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.call(Helper::MapDelete);
    }

    /// Copies `bytes`, a multiple of 8, between places that are registers and offsets; R2 is gone.
    pub(super) fn copy_memory(&mut self, to: (Reg, i16), from: (Reg, i16), bytes: i16) {
        for n in (0..bytes).step_by(8) {
            self.load(Width::Double, R2, from.0, from.1 + n);
            self.store(Width::Double, to.0, to.1 + n, R2);
        }
    }

    /// Clears `bytes`, a multiple of 8, from `at` on of the stack; R2 is gone.
    pub(super) fn clear(&mut self, at: i16, bytes: i16) {
        self.set(R2, 0);
        for n in (0..bytes).step_by(8) {
            self.store(Width::Double, FP, at + n, R2);
        }
    }

    /// Goes to `elsewhere` unless the socket of the context in `context` is of the network namespace
    /// with this cookie; the arguments' registers are gone.
    pub(super) fn if_in_other_namespace(&mut self, context: Reg, cookie: u64, elsewhere: Label) {
        self.copy(R1, context);
        self.call(Helper::NetnsCookie);
        self.set_double(R2, cookie);
        self.if_registers_differ(R0, R2, elsewhere);
    }

    /// In a program of `sock_ops` whose context is in `context`: changes, in R2, which calls the socket
    /// asks for, which stand in this field; other programs' wishes stay.
    pub(super) fn set_flags(&mut self, context: Reg, field: i16, change: impl FnOnce(&mut Asm)) {
        self.load(Width::Word, R2, context, field);
        change(self);
        self.copy(R1, context);
        self.call(Helper::SockOpsFlags);
    }
}
