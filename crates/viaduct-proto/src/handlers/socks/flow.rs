//! Flow through a SOCKS5 proxy.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::Proxy;
use super::dialogue::{Dialogue, Progress, Refusal};
use crate::flow::{Address, Context, Early, End, FIRST, Failure, Half, Handler, Output, Timer};
use crate::split::socks_client;
use crate::time::Duration;

/// Timeout of the proxy's reply. It is long because the proxy itself may have to wait for a server.
const PROXY_TIMEOUT: Duration = Duration::from_secs(130);
const ANSWER: Timer = Timer(0);

pub(super) struct Socks {
    proxy: Arc<Proxy>,
    stage: Stage,
    to: Option<Address>,
    inbox: BytesMut,
    early: Early,
    /// True if the flow below takes bytes.
    room: bool,
}

enum Stage {
    Connection,
    /// Waiting for the proxy to grant the request.
    Talk(Dialogue),
    /// Established: data passes. Initial state of an accepted flow.
    Through,
    Over,
}

impl Socks {
    pub(super) fn new(proxy: Arc<Proxy>) -> Socks {
        Socks {
            proxy,
            stage: Stage::Through,
            to: None,
            inbox: BytesMut::new(),
            early: Early::default(),
            room: true,
        }
    }

    /// Handles the proxy's messages that are complete.
    fn talk(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        while let Stage::Talk(dialogue) = &mut self.stage {
            match dialogue.handle_message(&mut self.inbox)? {
                Progress::Incomplete => break,
                Progress::Send(words) => drop(cx.output(FIRST).write(words.into())),
                Progress::Granted(_) => self.establish(cx),
            }
        }
        Ok(())
    }

    /// Completes the connect: data passes from now on.
    fn establish(&mut self, cx: &mut Context<'_>) {
        self.stage = Stage::Through;
        cx.set_timer(ANSWER, None);
        cx.upstream().connected(Ok(()));
        self.early.send(cx, FIRST);
        cx.upstream().may_write(self.room);
        let rest = self.inbox.split().freeze();
        if !rest.is_empty() {
            let _ = cx.upstream().avail(rest);
        }
    }

    fn refuse(&mut self, cx: &mut Context<'_>, Refusal(failure, why): Refusal) {
        self.stage = Stage::Over;
        cx.set_timer(ANSWER, None);
        cx.say(why);
        cx.unplumb(FIRST);
        cx.upstream().connected(Err(failure));
    }

    fn waits(&self) -> bool {
        !matches!(self.stage, Stage::Through | Stage::Over)
    }
}

impl Handler for Socks {
    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        (self.to, self.stage) = (Some(to), Stage::Connection);
        cx.upstream().may_write(false);
        cx.output(FIRST).connect(self.proxy.via.clone());
    }

    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                let request = self.to.as_ref().and_then(socks_client::request);
                let (dialogue, greeting) = Dialogue::begin(self.proxy.clone(), request);
                self.stage = Stage::Talk(dialogue);
                cx.set_timer(ANSWER, Some(cx.now() + PROXY_TIMEOUT));
                let _ = cx.output(FIRST).write(greeting.into());
            }
            Err(why) => {
                let line = format!("cannot connect to the proxy {}: {why}", self.proxy.via);
                self.refuse(cx, Refusal(why, line));
            }
        }
    }

    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.to.clone().or_else(|| cx.output(FIRST).getpeername())
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        if self.waits() {
            self.early.push(data);
            return true;
        }
        cx.output(FIRST).write(data)
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match (self.waits(), half) {
            (true, Half::Write) => self.early.end(End::Shutdown),
            (true, Half::Read) => {}
            _ => cx.output(FIRST).shutdown(half),
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        match self.waits() {
            true => self.early.end(End::Close),
            false => cx.output(FIRST).close(),
        }
    }

    fn held(&self) -> u64 {
        self.early.len()
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        if !self.waits() {
            return cx.upstream().avail(data);
        }
        self.inbox.extend_from_slice(&data);
        if let Err(refusal) = self.talk(cx) {
            self.refuse(cx, refusal);
        }
        !matches!(self.stage, Stage::Over)
    }

    fn finished(&mut self, cx: &mut Context<'_>, _from: Output) {
        match self.waits() {
            true => {
                let why = "the proxy ended the connection".to_owned();
                self.refuse(cx, Refusal(Failure::Unreachable, why));
            }
            false => cx.upstream().finished(),
        }
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        match self.waits() {
            true => {
                self.refuse(cx, Refusal(why, format!("the connection to the proxy failed: {why}")));
            }
            false => cx.upstream().failed(why),
        }
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        self.room = may;
        if !self.waits() {
            cx.upstream().may_write(may);
        }
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        let why = "the proxy does not answer".to_owned();
        self.refuse(cx, Refusal(Failure::TimedOut, why));
    }
}
