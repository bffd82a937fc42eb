//! Carrier of the flows of a run's program: the run's own workers, a shared master, or both.

use std::sync::Arc;

use viaduct_proto::wrap::Rules;
use viaduct_sys::socket::tcp::Mirrored;

use super::client::MasterClient;
use super::nested::NestedMaster;
use crate::engine::aware::{ProgramRequest, SocketId};
use crate::engine::commands::WorkerCommand;
use crate::engine::workers::Workers;
use crate::engine::wrapped::{Arrival, Call};

/// Carrier of a run's flows.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// The workers in this process.
    Own(Workers),
    /// A shared master.
    Shared(Arc<MasterClient>),
    /// The workers in this process, nested under a parent master. Flows that the [`Rules`] do not
    /// select bypass these workers, and are carried only by the parent.
    Nested(Workers, Arc<NestedMaster>, Box<Rules>),
}

impl Carrier {
    /// Begins a program's connect.
    pub fn call(&self, call: Call) {
        match self {
            Carrier::Own(workers) => {
                workers.to(&call.to).send(WorkerCommand::Connect(Box::new(call)));
            }
            Carrier::Shared(master) => master.call(call),
            Carrier::Nested(workers, nested, rules) => nested.call(call, rules, workers),
        }
    }

    /// Applies the options that a program has set on its socket to the connections of its flow. A
    /// shared master gets options only with the connect, because it does not know the sockets of
    /// its flows. A run that carries its own flows has a single worker, which is the first.
    pub fn mirror(&self, socket_id: SocketId, mirrored: Mirrored) {
        if let Carrier::Own(workers) | Carrier::Nested(workers, ..) = self {
            workers.first().send(WorkerCommand::Mirror(socket_id, Box::new(mirrored)));
        }
    }

    /// Passes a request to the handlers of a flow. With a shared master the request is dropped,
    /// because the master does not know the sockets of its flows.
    pub fn request(&self, request: ProgramRequest) {
        if let Carrier::Own(workers) | Carrier::Nested(workers, ..) = self {
            workers.first().send(WorkerCommand::Request(Box::new(request)));
        }
    }

    /// Accepts a connection to a program.
    pub fn arrive(&self, arrival: Arrival) {
        match self {
            Carrier::Own(workers) => {
                workers.with(arrival.client.ip()).send(WorkerCommand::Accept(Box::new(arrival)));
            }
            Carrier::Shared(master) => master.arrive(arrival),
            Carrier::Nested(workers, nested, _) => nested.arrive(arrival, workers),
        }
    }
}
