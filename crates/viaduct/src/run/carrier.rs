//! Who carries the flows of a run's program: a worker of its own, or a master that others share.

use std::sync::Arc;

use viaduct_proto::wrap::Rules;
use viaduct_sys::tcp::Mirrored;

use super::above::Above;
use super::joined::Joined;
use crate::proxy::aware::Whose;
use crate::proxy::calls::{Arrival, Call};
use crate::proxy::orders::{Order, ToWorker};

/// It.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// In this process.
    Own(ToWorker),
    /// A shared master.
    Shared(Arc<Joined>),
    /// This process, and a master below: what these rules leave is that one's alone.
    Above(ToWorker, Arc<Above>, Box<Rules>),
}

impl Carrier {
    /// Has it begin what a program asks for.
    pub fn call(&self, call: Call) {
        match self {
            Carrier::Own(worker) => worker.tell(Order::Call(Box::new(call))),
            Carrier::Shared(master) => master.call(call),
            Carrier::Above(worker, above, rules) => above.call(call, rules, worker),
        }
    }

    /// Has the connections of a program's flow have what it has set on its socket. A shared master, which does not know
    /// whose sockets its flows are, hears of that with the connect alone.
    pub fn mirror(&self, whose: Whose, mirrored: Mirrored) {
        if let Carrier::Own(worker) | Carrier::Above(worker, ..) = self {
            worker.tell(Order::Mirror(whose, Box::new(mirrored)));
        }
    }

    /// Has it take in a connection to a program.
    pub fn arrive(&self, arrival: Arrival) {
        match self {
            Carrier::Own(worker) => worker.tell(Order::Arrive(Box::new(arrival))),
            Carrier::Shared(master) => master.arrive(arrival),
            Carrier::Above(worker, above, _) => above.arrive(arrival, worker),
        }
    }
}
