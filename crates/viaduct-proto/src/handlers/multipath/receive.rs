//! Incoming messages, and the handling of invalid and broken connections.

use super::path::{Path, Stage};
use super::secret::Prover;
use super::wire::Frame;
use super::{Deadline, Handled, Multipath};
use crate::flow::{Context, Failure, Output};

/// Maximum number of unanswered pings received on one connection.
const MAX_PONGS: usize = 64 << 10;

impl Multipath {
    /// Handles bytes of a connection. Returns false if the connection is gone.
    pub(super) fn handle_bytes(&mut self, cx: &mut Context<'_>, from: Output, data: &[u8]) -> bool {
        let now = cx.now();
        let Some(path) = self.path(from) else { return false };
        path.inbox.extend_from_slice(data);
        if path.note_received(now) {
            // The connection works after all, so its replacement is not needed.
            let slot = path.slot;
            self.drop_attempts(cx, slot);
        }
        while let Some(path) = self.path(from) {
            let frame = match Frame::take(&mut path.inbox) {
                Ok(None) => break,
                Ok(Some(frame)) => self.handle_frame(cx, from, frame),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = frame {
                self.refuse(cx, from, &why);
            }
            if self.over {
                break;
            }
        }
        self.send_pongs(cx, from);
        self.path(from).is_some()
    }

    fn handle_frame(&mut self, cx: &mut Context<'_>, from: Output, frame: Frame) -> Handled {
        let Some(path) = self.path(from) else { return Ok(()) };
        match (path.stage, frame) {
            (Stage::Accepted, Frame::Hello { public, window }) if !self.session.claimed => {
                self.handle_hello(cx, from, &public, window)
            }
            (Stage::Opening, Frame::Welcome { public, window }) => {
                self.handle_welcome(cx, from, &public, window)
            }
            (Stage::Accepted, Frame::Join { session, slot, nonce }) => {
                self.handle_join(cx, from, &session, slot, nonce)
            }
            (Stage::Joining(nonce), Frame::Challenge { nonce: theirs, received, proof }) => {
                self.handle_challenge(cx, from, [nonce, theirs], received, &proof)
            }
            (Stage::Proving(nonces), Frame::Proof { received, proof }) => {
                self.verify_proof(Prover::Joining, from, nonces, received, &proof)?;
                self.activate(cx, from, received)
            }
            (Stage::Joining(_), Frame::Unknown) => self.handle_unknown(cx, from),
            (Stage::Live, frame) => self.handle_live_frame(cx, from, frame),
            _ => Err("an unexpected message".to_owned()),
        }
    }

    fn handle_live_frame(&mut self, cx: &mut Context<'_>, on: Output, frame: Frame) -> Handled {
        let now = cx.now();
        match frame {
            Frame::Data { at, data } => {
                if let Some(path) = self.path(on) {
                    path.reset_ping_interval();
                }
                if self.closed && self.out.is_done() {
                    self.reset(cx);
                } else if !self.received.push(at, data) {
                    return Err("more bytes than the receive window allows".to_owned());
                }
            }
            Frame::Ack(received) => return self.acked(received),
            Frame::End(at) => {
                self.received.end(at);
                self.deadlines.set(Deadline::Ack, cx.now());
            }
            Frame::Ping => {
                if let Some(path) = self.path(on) {
                    path.pongs += 1;
                    if path.pongs > MAX_PONGS {
                        return Err(
                            "the other end sends pings faster than it takes the answers".to_owned()
                        );
                    }
                }
            }
            Frame::Pong => {
                if let Some(path) = self.path(on) {
                    path.delivery_rate.on_pong(now);
                }
            }
            Frame::Reset => {
                // Data before the reset is still delivered.
                while self.deliver(cx) {}
                self.fail_silently(cx, Failure::Reset);
            }
            _ => return Err("an unexpected message".to_owned()),
        }
        Ok(())
    }

    /// Answers the pings received on a connection, if it takes bytes: the other end may send pings
    /// without reading.
    pub(super) fn send_pongs(&mut self, cx: &mut Context<'_>, on: Output) {
        let Some(path) = self.path(on).filter(|path| path.is_writable && path.pongs > 0) else {
            return;
        };
        let pongs = Frame::Pong.emit().repeat(std::mem::take(&mut path.pongs));
        let _ = cx.output(on).write(pongs.into());
    }

    pub(super) fn acked(&mut self, received: u64) -> Handled {
        let paths = &mut self.paths;
        let fits = self.out.acked(received, |on, bytes| {
            if let Some(path) = paths.iter_mut().find(|path| path.output == on) {
                path.in_flight = path.in_flight.saturating_sub(bytes);
            }
        });
        fits.then_some(())
            .ok_or_else(|| "an acknowledgement of data that was never sent".to_owned())
    }

    /// Resets the flow at the other end, because this end was closed or reset.
    pub(super) fn reset(&mut self, cx: &mut Context<'_>) {
        for path in self.paths.iter().filter(|path| path.carries()) {
            Multipath::say(cx, path.output, &Frame::Reset);
        }
        self.close_paths(cx, false);
    }

    /// Drops a connection after a protocol violation.
    pub(super) fn refuse(&mut self, cx: &mut Context<'_>, from: Output, why: &str) {
        cx.say(format_args!("a connection is refused: {why}"));
        self.drop_path(cx, from);
        if self.session.secret.is_none() {
            self.fail(cx, Failure::Reset, &"no connection is left");
        }
    }

    pub(super) fn handle_broken(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        if self.path(from).is_none() {
            return;
        }
        self.drop_path(cx, from);
        if self.session.secret.is_none() {
            self.fail(cx, why, &"the connection broke before the session was agreed on");
        }
    }

    fn drop_attempts(&mut self, cx: &mut Context<'_>, slot: u8) {
        let attempt = |path: &&Path| {
            path.slot == slot && matches!(path.stage, Stage::Dialling | Stage::Joining(_))
        };
        let attempts: Vec<_> = self.paths.iter().filter(attempt).map(|path| path.output).collect();
        attempts.into_iter().for_each(|output| self.drop_path(cx, output));
    }
}
