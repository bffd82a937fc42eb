//! `crypt:key=FILE`: encrypts and authenticates data, with forward secrecy (section 4.3 of the
//! TESLA paper).
//!
//! ```text
//!   connecting end                        accepting end
//!     e                         ──▶
//!                               ◀──       e, ee, s, es     accepting end is authenticated
//!     s, se; records …          ──▶                        connecting end is authenticated
//!     records …                 ◀─▶       records …        of up to 65519 bytes; an empty one ends
//! ```
//!
//! The handshake and the records are those of [`record`](crate::tunnel::record). Only authenticated
//! data is delivered upstream, and only an empty record ends a direction. A replayed handshake
//! fails at its third message, before the application is notified.

use std::sync::Arc;

use bytes::Bytes;

use super::Shell;
use crate::flow::{
    About, Address, Arguments, Context, Early, End, FIRST, Factory, Failure, Half, Handler, Output,
    Timer,
};
use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::time::Duration;
use crate::tunnel::record::{RecordError, Secure};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
const HANDSHAKE: Timer = Timer(0);

/// Keys of this end, and those accepted from the other end.
#[derive(Clone)]
struct Keys {
    secret: SecretKey,
    peers: Vec<PublicKey>,
    entropy: Entropy,
    /// Result of an earlier negotiation; the handshake fails if it differs between the two ends.
    binding: Vec<u8>,
}

struct CryptFactory(Arc<Keys>);

struct Crypt {
    keys: Arc<Keys>,
    stage: Stage,
    /// True if this end connected, false if it was accepted.
    dials: bool,
    early: Early,
    /// True if the flow below takes bytes.
    room: bool,
    /// True if the application will read no more data.
    deaf: bool,
    /// For the directions to and from the network: true if the direction has ended.
    ended: [bool; 2],
}

enum Stage {
    /// No connection yet.
    Idle,
    Shaking(Box<Secure>),
    Up(Box<Secure>),
    /// Aborted; no more data in either direction.
    Over,
}

pub(super) fn about() -> About {
    About::new("crypt", "encrypts and authenticates the flow's bytes, with forward secrecy")
        .setting("key", "FILE", "a secret key, as `viaduct key new` writes it")
        .setting("peer", "KEY[+KEY...]", "public keys of the other end; by default that of key=")
        .guards()
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let file = arguments.text("key").ok_or("key is missing, as in crypt:key=site.key")?;
    let text = (shell.files)(&file).map_err(|why| format!("key={file}: {why}"))?;
    let secret: SecretKey = text.parse().map_err(|error| format!("key={file}: {error}"))?;
    let peer = |text: &str| text.parse::<PublicKey>().map_err(|e| format!("peer={text}: {e}"));
    let peers = match arguments.text("peer") {
        Some(texts) => texts.split('+').map(peer).collect::<Result<_, _>>()?,
        None => vec![secret.public()],
    };
    let entropy = shell.entropy.clone();
    Ok(Arc::new(CryptFactory(Arc::new(Keys { secret, peers, entropy, binding: Vec::new() }))))
}

impl Factory for CryptFactory {
    fn name(&self) -> &'static str {
        "crypt"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Crypt {
            keys: self.0.clone(),
            stage: Stage::Idle,
            dials: false,
            early: Early::default(),
            room: true,
            deaf: false,
            ended: [false; 2],
        })
    }

    fn bound(&self, words: &[u8]) -> Option<Arc<dyn Factory>> {
        let keys = Keys { binding: words.to_vec(), ..(*self.0).clone() };
        Some(Arc::new(CryptFactory(Arc::new(keys))))
    }
}

impl Crypt {
    fn shake(&mut self, cx: &mut Context<'_>, dials: bool) {
        let Keys { secret, peers, entropy, binding } = &*self.keys;
        let mut out = Vec::new();
        self.dials = dials;
        match Secure::flow(dials, binding, secret, peers.clone(), entropy.clone(), &mut out) {
            Ok(secure) => self.stage = Stage::Shaking(Box::new(secure)),
            Err(error) => return self.refuse(cx, Failure::Denied, &error),
        }
        send(cx, out);
        cx.set_timer(HANDSHAKE, Some(cx.now() + HANDSHAKE_TIMEOUT));
    }

    /// Completes the handshake: reports it to the application, and sends the data written so far.
    fn establish(&mut self, cx: &mut Context<'_>) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Shaking(secure) => self.stage = Stage::Up(secure),
            other => self.stage = other,
        }
        cx.set_timer(HANDSHAKE, None);
        if self.deaf {
            cx.output(FIRST).shutdown(Half::Read);
        }
        match self.dials {
            true => cx.upstream().connected(Ok(())),
            false => cx.upstream().accepted(),
        }
        let (pieces, end) = self.early.take();
        for data in pieces {
            self.write(cx, data);
        }
        match end {
            Some(End::Close) => self.close(cx),
            Some(End::Shutdown) => self.shutdown(cx, Half::Write),
            None => {}
        }
        cx.upstream().may_write(self.room);
    }

    /// Aborts the flow, and logs the reason.
    fn refuse(&mut self, cx: &mut Context<'_>, failure: Failure, why: &dyn std::fmt::Display) {
        let was = std::mem::replace(&mut self.stage, Stage::Over);
        cx.set_timer(HANDSHAKE, None);
        if matches!(was, Stage::Over) {
            return;
        }
        let peer = cx.output(FIRST).getpeername();
        match (peer, &was) {
            // The log names the peer of an accepted connection.
            (Some(peer), Stage::Shaking(_)) if !self.dials => {
                cx.say(format_args!("{peer} is refused: {why}"));
            }
            _ => cx.say(why),
        }
        cx.unplumb(FIRST);
        match was {
            Stage::Shaking(_) if self.dials => cx.upstream().connected(Err(failure)),
            _ => cx.upstream().failed(failure),
        }
    }

    /// Decrypts the records that are complete.
    fn open(&mut self, cx: &mut Context<'_>) {
        loop {
            let mut out = Vec::new();
            let (Stage::Shaking(secure) | Stage::Up(secure)) = &mut self.stage else { return };
            let record = secure.next(&mut out);
            let rises = secure.is_up();
            send(cx, out);
            if rises && matches!(self.stage, Stage::Shaking(_)) {
                self.establish(cx);
            }
            match record {
                Ok(None) => return,
                Ok(Some(_)) if self.ended[1] => {
                    return self.refuse(cx, Failure::Reset, &"data after the end of the stream");
                }
                Ok(Some(plain)) if plain.is_empty() => {
                    self.ended[1] = true;
                    cx.upstream().finished();
                }
                // If upstream no longer reads, records are still decrypted, because one of them may
                // be the end.
                Ok(Some(plain)) => _ = cx.upstream().avail(plain.freeze()),
                Err(error) => {
                    let shaking = matches!(self.stage, Stage::Shaking(_));
                    let failure = if shaking { Failure::Denied } else { Failure::Reset };
                    if shaking && matches!(error, RecordError::Length(_)) {
                        let why = format!("the other end does not speak crypt: {error}");
                        return self.refuse(cx, failure, &why);
                    }
                    if shaking && !self.keys.binding.is_empty() {
                        let why = format!("{error}; or the negotiation was altered in transit");
                        return self.refuse(cx, failure, &why);
                    }
                    return self.refuse(cx, failure, &error);
                }
            }
        }
    }

    /// Reason to log when the other end aborts a handshake.
    fn broken_off(&self) -> String {
        let key = self.keys.secret.public();
        format!(
            "the other end aborted the handshake: it has no crypt, or its peers do not include our \
             key {key}"
        )
    }
}

/// Writes to the network. A flow that accepts no more data reports that upstream itself.
fn send(cx: &mut Context<'_>, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        let _ = cx.output(FIRST).write(bytes.into());
    }
}

impl Handler for Crypt {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.plumb();
        cx.upstream().may_write(false);
    }

    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        cx.output(FIRST).connect(to);
    }

    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        match result {
            Ok(()) => self.shake(cx, true),
            Err(_) => {
                self.stage = Stage::Over;
                cx.upstream().connected(result);
            }
        }
    }

    fn accepted(&mut self, cx: &mut Context<'_>, _from: Output) {
        self.shake(cx, false);
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        match &mut self.stage {
            Stage::Up(_) if self.ended[0] => return false,
            Stage::Up(secure) => {
                let mut out = Vec::new();
                secure.seal(&data, &mut out);
                send(cx, out);
            }
            Stage::Over => return false,
            Stage::Idle | Stage::Shaking(_) => self.early.push(data),
        }
        true
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match (&mut self.stage, half) {
            (Stage::Up(_), Half::Read) => cx.output(FIRST).shutdown(Half::Read),
            (Stage::Up(secure), Half::Write) if !self.ended[0] => {
                let mut out = Vec::new();
                secure.seal_end(&mut out);
                self.ended[0] = true;
                send(cx, out);
                cx.output(FIRST).shutdown(Half::Write);
            }
            (Stage::Idle | Stage::Shaking(_), Half::Write) => self.early.end(End::Shutdown),
            (Stage::Idle | Stage::Shaking(_), Half::Read) => self.deaf = true,
            _ => {}
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        match &self.stage {
            Stage::Shaking(_) => self.early.end(End::Close),
            // Data written before the connection still has to be sent.
            Stage::Idle if self.early.len() > 0 => self.early.end(End::Close),
            _ => {
                self.shutdown(cx, Half::Write);
                cx.output(FIRST).close();
            }
        }
    }

    fn held(&self) -> u64 {
        self.early.len()
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        let (Stage::Shaking(secure) | Stage::Up(secure)) = &mut self.stage else { return false };
        match data.try_into_mut() {
            Ok(data) if secure.inbox().is_empty() => *secure.inbox() = data,
            Ok(data) => secure.inbox().extend_from_slice(&data),
            Err(data) => secure.inbox().extend_from_slice(&data),
        }
        self.open(cx);
        !matches!(self.stage, Stage::Over)
    }

    fn finished(&mut self, cx: &mut Context<'_>, _from: Output) {
        match self.stage {
            Stage::Shaking(_) => self.refuse(cx, Failure::Denied, &self.broken_off()),
            Stage::Up(_) if self.ended[1] => {}
            _ => self.refuse(
                cx,
                Failure::Reset,
                &"the flow was cut: the connection ended without an end record",
            ),
        }
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        match self.stage {
            Stage::Shaking(_) => self.refuse(cx, why, &self.broken_off()),
            _ => {
                self.stage = Stage::Over;
                cx.upstream().failed(why);
            }
        }
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        self.room = may;
        if matches!(self.stage, Stage::Up(_)) {
            cx.upstream().may_write(may);
        }
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        self.refuse(cx, Failure::TimedOut, &"the other end did not complete the handshake in time");
    }
}
