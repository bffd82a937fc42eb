//! Who carries the flows of a run's program: a worker of its own, or a master that others share.

use std::sync::Arc;

use super::joined::Joined;
use crate::proxy::calls::{Arrival, Call};
use crate::proxy::orders::{Order, ToWorker};

/// It.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// In this process.
    Own(ToWorker),
    /// A shared master.
    Shared(Arc<Joined>),
}

impl Carrier {
    /// Has it begin what a program asks for.
    pub fn call(&self, call: Call) {
        match self {
            Carrier::Own(worker) => worker.tell(Order::Call(Box::new(call))),
            Carrier::Shared(master) => master.call(call),
        }
    }

    /// Has it take in a connection to a program.
    pub fn arrive(&self, arrival: Arrival) {
        match self {
            Carrier::Own(worker) => worker.tell(Order::Arrive(Box::new(arrival))),
            Carrier::Shared(master) => master.arrive(arrival),
        }
    }
}
