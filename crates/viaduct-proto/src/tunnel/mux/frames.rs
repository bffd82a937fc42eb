//! Processing of received frames.

use super::{Carrier, Handled, Mux, Timer};
use crate::flow::Failure;
use crate::time::Duration;
use crate::tunnel::common::{Common, Event, LinkError};
use crate::tunnel::stream::{Receiving, Sending, Stream};
use crate::tunnel::wire::{Frame, Opening};

/// Time after LEAVE within which streams opened before may still arrive on lanes of their own.
const LATE_STREAMS: Duration = Duration::from_secs(2);

impl Mux {
    pub(super) fn handle_link_frame(&mut self, cx: &mut Common, frame: Frame<'_>) -> Handled {
        match (frame, self.hello) {
            (Frame::Hello(hello), None) if hello.link == self.number => {
                // The HELLO was in flight when the peer restarted.
                if cx.former == Some(hello.instance) {
                    return Err(LinkError::Restarted);
                }
                self.hello = Some(hello);
                let was = cx.peer.replace(hello.instance);
                if let Some(was) = was.filter(|&was| was != hello.instance) {
                    cx.tokens.restart();
                    (cx.former, cx.restarted) = (Some(was), true);
                }
                cx.tokens.hello(hello.tokens, hello.least_window);
                cx.events.push_back(Event::LinkUp(self.number));
            }
            (Frame::Hello(_), _) => return Err(LinkError::Protocol("an unexpected HELLO")),
            (_, None) => return Err(LinkError::Protocol("a link that begins without a HELLO")),
            (Frame::Grant(tokens), _) => cx.tokens.set_total(tokens),
            (Frame::Ping(any), _) => self.control.push_back((0, Frame::Pong(any))),
            (Frame::Pong(at), _) if !self.rtt.handle_pong(cx.now, at) => {
                return Err(LinkError::Protocol("a PONG without its PING"));
            }
            (Frame::Pong(_), _) => {
                drop(self.reported_gone.drain(..std::mem::take(&mut self.gone_before_ping)));
            }
            (Frame::Leave, _) => {
                cx.peer_leaves |= !self.leaving[0];
                self.leaving[1] = true;
                self.leave();
                // The SYN of a stream may have been lost, and arrive on its own lane later.
                let is_late = self.carrier == Carrier::Streams;
                self.timers.set(Timer::Late, is_late.then_some(cx.now + LATE_STREAMS));
            }
            (Frame::Gone(link), _) if link == self.number => {
                return Err(LinkError::Protocol("a GONE on the link that it names"));
            }
            (Frame::Gone(link), _) => cx.gone.push(link),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn handle_stream_frame(
        &mut self,
        cx: &mut Common,
        number: u32,
        frame: Frame<'_>,
    ) -> Handled {
        if self.hello.is_none() && self.carrier == Carrier::Stream {
            return Err(LinkError::Protocol("a link that begins without a HELLO"));
        }
        if let Frame::Syn(Some(opening)) = frame {
            return self.offered(cx, number, *opening);
        }
        if !self.streams.contains_key(&number) {
            return self.handle_forgotten(number, &frame);
        }
        match frame {
            Frame::Syn(_) => self.accepted(cx, number)?,
            Frame::Data(bytes) => self.handle_data(cx, number, bytes)?,
            Frame::Fin => self.handle_fin(cx, number)?,
            Frame::FinAck => self.handle_finack(cx, number)?,
            Frame::Rst(why) => self.handle_rst(cx, number, why),
            Frame::Ack(freed) => {
                let account = self.streams[&number].account;
                let freed = cx.tokens.free(account, freed);
                freed.map_err(|_| LinkError::Protocol("an ACK of more than was sent"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles a frame for a stream that does not exist, or no longer exists.
    fn handle_forgotten(&mut self, number: u32, frame: &Frame<'_>) -> Handled {
        match frame {
            _ if !self.numbers.was_used(number) => {
                Err(LinkError::Protocol("a stream that was not opened"))
            }
            Frame::Rst(_) => {
                self.control.push_back((number, Frame::Fin));
                Ok(())
            }
            Frame::Data(_) => Err(LinkError::Protocol("bytes for a stream that is over")),
            _ => Ok(()),
        }
    }

    fn offered(&mut self, cx: &mut Common, number: u32, open: Opening) -> Handled {
        // Over QUIC each stream has a QUIC stream of its own, and these may overtake each other: a
        // SYN may have a lower number than one that has arrived already.
        let new = match self.carrier {
            Carrier::Stream => self.numbers.is_beyond(number),
            Carrier::Streams => !self.streams.contains_key(&number),
        };
        if self.numbers.is_own(number) || !new {
            return Err(LinkError::Protocol(
                "a SYN whose number is in use, too low, or not the peer's",
            ));
        }
        self.numbers.taken_by_peer(number);
        // A SYN may overtake the frames that end other streams; the peer already counts those
        // streams as closed. Twice the limit is therefore allowed.
        if self.numbers.open_beside(number) >= cx.settings.streams.saturating_mul(2) {
            return Err(LinkError::Protocol("more streams than were allowed"));
        }
        self.insert(number, Stream::offered(cx.tokens.open()));
        cx.totals.accepted += 1;
        let Opening { to, source } = open;
        cx.events.push_back(Event::Opened { id: self.id(number), to, source });
        Ok(())
    }

    fn accepted(&mut self, cx: &mut Common, number: u32) -> Handled {
        let id = self.id(number);
        let stream = self.stream(number);
        match stream.receiving {
            _ if stream.resetting => {}
            Receiving::Idle => {
                stream.receiving = Receiving::Open;
                cx.events.push_back(Event::Accepted(id));
            }
            _ => return Err(LinkError::Protocol("a second SYN")),
        }
        Ok(())
    }

    fn handle_data(&mut self, cx: &mut Common, number: u32, bytes: &[u8]) -> Handled {
        let id = self.id(number);
        let rtt = self.rtt.shortest();
        self.traffic.received += bytes.len() as u64;
        let stream = self.stream(number);
        if stream.resetting {
            return Ok(()); // the bytes are dropped
        }
        if stream.receiving != Receiving::Open {
            return Err(LinkError::Protocol("bytes before SYN or after FIN"));
        }
        let overrun = LinkError::Protocol("more bytes than there were tokens for");
        cx.window.receive(stream.unacknowledged(), bytes.len()).map_err(|_| overrun)?;
        cx.totals.received += bytes.len() as u64;
        if stream.receive(bytes).is_some() {
            cx.events.push_back(Event::Readable(id));
        }
        if rtt.is_some_and(|rtt| cx.window.measure(cx.now, rtt)) {
            self.control.push_back((0, Frame::Grant(cx.window.total)));
        }
        Ok(())
    }

    fn handle_fin(&mut self, cx: &mut Common, number: u32) -> Handled {
        let stream = self.stream(number);
        if stream.resetting {
            // Answer to our RST: the peer has dropped all bytes.
            self.forget(cx, number);
            return Ok(());
        }
        if stream.receiving != Receiving::Open {
            return Err(LinkError::Protocol("a FIN before SYN, or a second one"));
        }
        stream.receiving = Receiving::Ended;
        self.settle(cx, number);
        Ok(())
    }

    fn handle_finack(&mut self, cx: &mut Common, number: u32) -> Handled {
        let stream = self.stream(number);
        if stream.resetting {
            return Ok(());
        }
        if stream.sending != Sending::Ended || cx.tokens.outstanding(stream.account) > 0 {
            return Err(LinkError::Protocol("a FINACK before FIN or before all ACKs"));
        }
        stream.sending = Sending::Closed;
        self.settle(cx, number);
        Ok(())
    }

    fn handle_rst(&mut self, cx: &mut Common, number: u32, why: Failure) {
        let id = self.id(number);
        if self.stream(number).resetting {
            // Both ends have reset the stream: each RST answers the other.
            return self.forget(cx, number);
        }
        self.control.push_back((number, Frame::Fin));
        self.forget(cx, number);
        cx.totals.reset += 1;
        cx.events.push_back(Event::Reset(id, why));
    }
}
