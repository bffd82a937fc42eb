//! Wrapped programs of a loop's flows: those that connect, and those that listen.

use std::collections::HashMap;

use super::aware::{Aware, SocketId};
use super::wrapped::{PendingConnect, Program};

/// Programs, by the key of their flow.
#[derive(Debug, Default)]
pub(super) struct Programs {
    calls: HashMap<usize, Box<dyn PendingConnect>>,
    /// Programs to connect to once the handlers of their flow accept it.
    listening: HashMap<usize, Box<dyn Program>>,
    /// Programs to which a connection was begun.
    connected: HashMap<usize, Box<dyn Program>>,
    /// Flows of programs that exchange requests and events with the flows' handlers.
    pub(super) aware: Aware,
}

impl Programs {
    /// Adds the pending connect of flow `key`.
    pub(super) fn add_call(&mut self, key: usize, held: Box<dyn PendingConnect>) {
        self.aware.add(key, held.socket_id());
        self.calls.insert(key, held);
    }

    /// Adds the program that the inbound flow `key` is to be connected to. `socket_id` identifies
    /// the flow in the program's requests.
    pub(super) fn add_arrival(
        &mut self,
        key: usize,
        socket_id: SocketId,
        program: Box<dyn Program>,
    ) {
        self.aware.add(key, Some(socket_id));
        self.listening.insert(key, program);
    }

    /// Sets the program that flow `key` is to be connected to.
    pub(super) fn set_listening(&mut self, key: usize, program: Box<dyn Program>) {
        self.listening.insert(key, program);
    }

    /// Takes the pending connect of flow `key`, if there is one.
    pub(super) fn take_call(&mut self, key: usize) -> Option<Box<dyn PendingConnect>> {
        self.calls.remove(&key)
    }

    /// Program that flow `key` is to be connected to, if there is one.
    pub(super) fn listening(&mut self, key: usize) -> Option<&mut Box<dyn Program>> {
        self.listening.get_mut(&key)
    }

    /// Takes the program that flow `key` is to be connected to, if there is one.
    pub(super) fn take_listening(&mut self, key: usize) -> Option<Box<dyn Program>> {
        self.listening.remove(&key)
    }

    /// Keeps the program to which a connection was begun for flow `key`, until the flow ends.
    pub(super) fn set_connected(&mut self, key: usize, program: Box<dyn Program>) {
        self.connected.insert(key, program);
    }

    /// Returns whether flow `key` waits for a program, or a program waits for the flow.
    pub(super) fn wait_for(&self, key: usize) -> bool {
        self.listening.contains_key(&key) || self.calls.contains_key(&key)
    }

    /// Returns whether flow `key` is to be connected to a program.
    pub(super) fn has_listening(&self, key: usize) -> bool {
        self.listening.contains_key(&key)
    }

    /// Flows that are to be connected to a program.
    pub(super) fn all_listening(&self) -> impl Iterator<Item = usize> {
        self.listening.keys().copied()
    }

    /// Flows whose program can no longer get the result of its connect.
    pub(super) fn abandoned(&self) -> Vec<usize> {
        self.calls.iter().filter(|(_, held)| held.has_gone()).map(|(key, _)| *key).collect()
    }

    /// Drops the program of flow `key`. The drop tells the program's interposer that the flow has
    /// ended.
    pub(super) fn drop_program(&mut self, key: usize) {
        self.calls.remove(&key);
        self.listening.remove(&key);
        self.connected.remove(&key);
    }
}
