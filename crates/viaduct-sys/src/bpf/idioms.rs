//! Common instruction sequences: map look-ups and updates, cookies, copies on the stack.

use super::asm::{Asm, FP, Helper, Label, R0, R1, R2, R3, R4, Reg, Width};
use super::kernel::MapFd;

impl Asm {
    /// to = the address of `at` on the stack.
    pub(super) fn point(&mut self, to: Reg, at: i16) {
        self.copy(to, FP);
        self.add(to, at.into());
    }

    /// Stores the cookie of the context's socket at `at` on the stack. `context` has the
    /// context's address.
    pub(super) fn store_cookie(&mut self, context: Reg, at: i16) {
        if context != R1 {
            self.copy(R1, context);
        }
        self.call(Helper::SocketCookie);
        self.store(Width::Double, FP, at, R0);
    }

    /// R0 = address of the value in `map` for the key at `key` on the stack; jumps to `none` if
    /// there is no such key.
    pub(super) fn look_up(&mut self, map: &dyn MapFd, key: i16, none: Label) {
        self.ask(map, key);
        self.if_nothing(R0, none);
    }

    /// R0 = address of the value, as in [`Asm::look_up`]; jumps to `some` if there is such a key.
    pub(super) fn look_for(&mut self, map: &dyn MapFd, key: i16, some: Label) {
        self.ask(map, key);
        self.if_something(R0, some);
    }

    fn ask(&mut self, map: &dyn MapFd, key: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.call(Helper::MapLookup);
    }

    /// Puts the value at `value` into `map` for the key at `key`. R0 = 0, or an error if the map
    /// is full.
    pub(super) fn keep(&mut self, map: &dyn MapFd, key: i16, value: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.point(R3, value);
        self.set(R4, 0);
        self.call(Helper::MapUpdate);
    }

    /// Removes the entry of the key at `key` on the stack from `map`.
    pub(super) fn forget(&mut self, map: &dyn MapFd, key: i16) {
        self.set_map(R1, map);
        self.point(R2, key);
        self.call(Helper::MapDelete);
    }

    /// Copies `bytes` bytes, a multiple of 8, between two addresses, each a register and an offset.
    /// Clobbers R2.
    pub(super) fn copy_memory(&mut self, to: (Reg, i16), from: (Reg, i16), bytes: i16) {
        for n in (0..bytes).step_by(8) {
            self.load(Width::Double, R2, from.0, from.1 + n);
            self.store(Width::Double, to.0, to.1 + n, R2);
        }
    }

    /// Zeroes `bytes` bytes, a multiple of 8, on the stack from `at`. Clobbers R2.
    pub(super) fn clear(&mut self, at: i16, bytes: i16) {
        self.set(R2, 0);
        for n in (0..bytes).step_by(8) {
            self.store(Width::Double, FP, at + n, R2);
        }
    }

    /// Jumps to `elsewhere` unless the context's socket belongs to the network namespace with this
    /// cookie. `context` has the context's address. Clobbers the argument registers.
    pub(super) fn if_in_other_namespace(&mut self, context: Reg, cookie: u64, elsewhere: Label) {
        self.copy(R1, context);
        self.call(Helper::NetnsCookie);
        self.set_double(R2, cookie);
        self.if_registers_differ(R0, R2, elsewhere);
    }

    /// Sets the callback flags of the sock_ops context in register `context`: loads them from
    /// `field` into R2, lets `change` modify R2, and stores them. Flags of other programs are kept.
    pub(super) fn set_flags(&mut self, context: Reg, field: i16, change: impl FnOnce(&mut Asm)) {
        self.load(Width::Word, R2, context, field);
        change(self);
        self.copy(R1, context);
        self.call(Helper::SockOpsFlags);
    }
}
