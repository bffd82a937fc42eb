//! Order of the messages, for both processes.

use super::FORMAT;
use super::flow::FlowRecord;
use super::gateway::{ConnectionRecord, GatewayRecord, PeerRecord, StopRecord};
use super::record::{Message, RecordError, ServiceRecord};

/// Errors that end an upgrade. The old process continues.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The new program does not read this program's records.
    #[error(
        "the new program ({version}) reads state formats {oldest} to {newest}, and this one writes \
         {FORMAT}: restart the service instead"
    )]
    Format {
        /// Version of the new program.
        version: String,
        /// Oldest format that it reads.
        oldest: u32,
        /// Newest format that it reads.
        newest: u32,
    },
    /// The other process has refused.
    #[error("{0}")]
    Refused(String),
    /// A message that is not allowed at this point.
    #[error("the other process has sent a message out of order")]
    Order,
    /// A malformed message.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Old process's side.
#[derive(Debug, Default)]
pub struct Giver {
    stage: GiverStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GiverStage {
    /// Waits for `Hello`.
    #[default]
    Greeting,
    /// Waits for `Ready`.
    Preparing,
    /// Sends flows.
    Sending,
    /// Waits for `Taken`.
    Confirming,
    /// The new process serves.
    Released,
}

/// Next action of the old process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiverStep {
    /// Send the service.
    SendService,
    /// Stop accepting (a proxy) or sending (a gateway); send the flows or the peers, and
    /// then `End`.
    SendFlows,
    /// Close the copies of all descriptors that were sent, and drain the remaining flows.
    Release,
}

impl Giver {
    /// Handles a message of the new process.
    ///
    /// # Errors
    /// The upgrade has failed: this process continues with all of its flows.
    pub fn handle_message(&mut self, message: Message) -> Result<GiverStep, UpgradeError> {
        let (stage, step) = match (self.stage, message) {
            (_, Message::Refused { reason }) => return Err(UpgradeError::Refused(reason)),
            (GiverStage::Greeting, Message::Hello { version, oldest, newest }) => {
                if !(oldest..=newest).contains(&FORMAT) {
                    return Err(UpgradeError::Format { version, oldest, newest });
                }
                (GiverStage::Preparing, GiverStep::SendService)
            }
            (GiverStage::Preparing, Message::Ready) => (GiverStage::Sending, GiverStep::SendFlows),
            (GiverStage::Confirming, Message::Taken) => (GiverStage::Released, GiverStep::Release),
            _ => return Err(UpgradeError::Order),
        };
        self.stage = stage;
        Ok(step)
    }

    /// Records that the end was sent.
    pub fn handle_end_sent(&mut self) {
        if self.stage == GiverStage::Sending {
            self.stage = GiverStage::Confirming;
        }
    }

    /// Returns whether the new process is responsible for the service. Until then this process is
    /// responsible, even if the new one dies.
    pub fn is_released(&self) -> bool {
        self.stage == GiverStage::Released
    }
}

/// New process's side.
#[derive(Debug, Default)]
pub struct Taker {
    stage: TakerStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TakerStage {
    /// Waits for the service.
    #[default]
    Waiting,
    /// Takes peers, until the gateway's proxy of split mode follows.
    TakingPeers,
    /// Takes flows or peers.
    Taking,
    /// Has everything.
    Complete,
}

/// Next action of the new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakerStep {
    /// Prepare the service, or the gateway's proxy of split mode, and send `Ready`.
    Prepare(ServiceRecord),
    /// Prepare the gateway, and send `Ready`, after the proxy if there is one.
    PrepareGateway(GatewayRecord),
    /// Keep these flows of a worker; do not touch them yet.
    Keep(u32, Vec<FlowRecord>),
    /// Keep this peer, or its newest state.
    KeepPeer(Box<PeerRecord>),
    /// Keep these connections.
    KeepConnections(Vec<ConnectionRecord>),
    /// Record where the old process has stopped.
    KeepCut(StopRecord),
    /// Send `Taken`, and serve.
    Serve,
}

impl Taker {
    /// First message to the old process.
    pub fn hello(version: &str) -> Message {
        Message::Hello { version: version.to_owned(), oldest: FORMAT, newest: FORMAT }
    }

    /// Handles a message of the old process.
    ///
    /// # Errors The upgrade has failed: this process ends, and changes nothing.
    pub fn handle_message(&mut self, message: Message) -> Result<TakerStep, UpgradeError> {
        match (self.stage, message) {
            (_, Message::Refused { reason }) => Err(UpgradeError::Refused(reason)),
            (TakerStage::Waiting | TakerStage::TakingPeers, Message::Service(service)) => {
                self.stage = TakerStage::Taking;
                Ok(TakerStep::Prepare(service))
            }
            (TakerStage::Waiting, Message::Gateway(gateway)) => {
                self.stage = match gateway.has_flows {
                    true => TakerStage::TakingPeers,
                    false => TakerStage::Taking,
                };
                Ok(TakerStep::PrepareGateway(gateway))
            }
            (TakerStage::TakingPeers | TakerStage::Taking, Message::Peer(peer)) => {
                Ok(TakerStep::KeepPeer(peer))
            }
            (TakerStage::Taking, Message::Connections(all)) => Ok(TakerStep::KeepConnections(all)),
            (TakerStage::Taking, Message::Cut(cut)) => Ok(TakerStep::KeepCut(cut)),
            (TakerStage::Taking, Message::Flows { worker, flows }) => {
                Ok(TakerStep::Keep(worker, flows))
            }
            (TakerStage::Taking, Message::End) => {
                self.stage = TakerStage::Complete;
                Ok(TakerStep::Serve)
            }
            _ => Err(UpgradeError::Order),
        }
    }

    /// Returns whether everything has arrived: this process serves even if the old one ends now.
    pub fn is_complete(&self) -> bool {
        self.stage == TakerStage::Complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn service() -> Message {
        let workers = vec![super::super::ListenRecord::default()];
        Message::Service(ServiceRecord { workers, ..ServiceRecord::default() })
    }

    /// Messages that the old process sends for `step`.
    fn answer(step: GiverStep) -> Vec<Message> {
        match step {
            GiverStep::SendService => vec![service()],
            GiverStep::SendFlows => {
                vec![Message::Flows { worker: 0, flows: Vec::new() }, Message::End]
            }
            GiverStep::Release => Vec::new(),
        }
    }

    /// Runs the conversation until `cut` messages have been delivered. Returns whether the old and
    /// the new process are responsible if the other one is killed then.
    fn owners(cut: usize) -> (bool, bool) {
        let (mut giver, mut taker) = (Giver::default(), Taker::default());
        let (mut to_giver, mut to_taker) = (vec![Taker::hello("1")], Vec::new());
        for _ in 0..cut {
            if let Some(message) = to_giver.pop() {
                let step = giver.handle_message(message).unwrap();
                to_taker.extend(answer(step));
                if step == GiverStep::SendFlows {
                    giver.handle_end_sent();
                }
            } else if !to_taker.is_empty() {
                match taker.handle_message(to_taker.remove(0)).unwrap() {
                    TakerStep::Prepare(_) => to_giver.push(Message::Ready),
                    TakerStep::Serve => to_giver.push(Message::Taken),
                    _ => {}
                }
            }
        }
        (!giver.is_released(), taker.is_complete())
    }

    #[test]
    fn at_every_cut_one_process_is_responsible() {
        let all: Vec<_> = (0..8).map(owners).collect();
        assert!(all.iter().all(|(old, new)| *old || *new), "{all:?}");
        assert_eq!(all.first(), Some(&(true, false)));
        assert_eq!(all.last(), Some(&(false, true)), "and in the end only the new one");
    }

    #[test]
    fn another_format_is_refused_with_a_reason_before_anything_is_sent() {
        for (oldest, newest) in [(FORMAT + 1, FORMAT + 3), (0, FORMAT - 1), (9, 2)] {
            let mut giver = Giver::default();
            let version = "9.1".to_owned();
            let error = giver.handle_message(Message::Hello { version, oldest, newest });
            let error = error.unwrap_err().to_string();
            assert!(error.contains("9.1") && error.contains("restart"), "{error}");
            assert!(!giver.is_released());
        }
        let wider = Message::Hello { version: "9.1".to_owned(), oldest: 0, newest: 9 };
        assert_eq!(Giver::default().handle_message(wider).unwrap(), GiverStep::SendService);
    }

    #[test]
    fn a_gateway_sends_its_proxy_after_its_peers_and_only_if_it_has_one() {
        for has_flows in [true, false] {
            let gateway = GatewayRecord { has_flows, ..GatewayRecord::default() };
            let mut taker = Taker::default();
            taker.handle_message(Message::Gateway(gateway)).unwrap();
            let ended = taker.handle_message(Message::End);
            assert_eq!(ended.is_err(), has_flows, "its proxy has still to follow");
            assert_eq!(taker.handle_message(service()).is_ok(), has_flows);
            assert!(taker.handle_message(service()).is_err(), "a second one");
            assert_eq!(taker.handle_message(Message::End).is_ok(), has_flows);
            assert!(taker.is_complete());
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Message(usize),
        EndSent,
    }

    proptest! {
        #[test]
        fn no_order_of_messages_releases_before_the_end_was_sent(
            events in proptest::collection::vec(
                prop_oneof![(0..6_usize).prop_map(Event::Message), Just(Event::EndSent)], 0..40,
            )
        ) {
            let all = [
                Taker::hello("1"), service(), Message::Ready, Message::End, Message::Taken,
                Message::Flows { worker: 0, flows: Vec::new() },
            ];
            let (mut giver, mut taker) = (Giver::default(), Taker::default());
            let (mut is_ready, mut is_sent, mut was_given) = (false, false, false);
            for event in events {
                match event {
                    Event::EndSent => {
                        giver.handle_end_sent();
                        is_sent |= is_ready;
                    }
                    Event::Message(n) => {
                        is_ready |= giver.handle_message(all[n].clone()).ok()
                            == Some(GiverStep::SendFlows);
                        let step = taker.handle_message(all[n].clone());
                        was_given |= matches!(step, Ok(TakerStep::Prepare(_)));
                    }
                }
                prop_assert!(!giver.is_released() || is_sent);
                prop_assert!(!taker.is_complete() || was_given);
            }
        }
    }
}
