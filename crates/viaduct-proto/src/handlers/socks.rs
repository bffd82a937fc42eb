//! `socks:via=HOST:PORT`: flows go by a SOCKS5 proxy (TESLA, 4.2). Names are looked up there, not
//! here.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::Shell;
use super::early::{Early, End};
use crate::flow::{
    About, Address, Arguments, Context, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::split::socks::{Credentials, Method};
use crate::split::{Parsed, socks_client};
use crate::time::Duration;

/// Longer than this no proxy takes; it may have to wait for a server.
const PATIENCE: Duration = Duration::from_secs(130);
const ANSWER: Timer = Timer(0);

/// The proxy, and who we are to it.
struct Proxy {
    via: Address,
    user: Option<Credentials>,
}

struct SocksFactory(Arc<Proxy>);

/// One flow.
struct Socks {
    proxy: Arc<Proxy>,
    stage: Stage,
    to: Option<Address>,
    inbox: BytesMut,
    early: Early,
    /// Whether the flow below takes bytes.
    room: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connection,
    Choice,
    Verdict,
    Reply,
    /// Nothing: bytes pass. So they do from the start in a flow that was accepted.
    Through,
    Over,
}

/// Why the proxy is of no use.
#[derive(Debug)]
struct Refusal(Failure, String);

pub(super) fn about() -> About {
    About::new("socks", "goes by a SOCKS5 proxy, which also looks up names")
        .setting("via", "HOST:PORT", "the proxy")
        .setting("user", "NAME", "who to say that one is; nobody by default")
        .setting("password", "FILE", "a file that holds the user's password")
        .guards()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let via = arguments.take("via", "a host and a port, such as 192.0.2.1:1080,", address)?;
    let via = via.ok_or("via is missing, as in socks:via=192.0.2.1:1080")?;
    let user = match (arguments.text("user"), arguments.text("password")) {
        (None, None) => None,
        (Some(name), Some(file)) => {
            let text = (shell.files)(&file).map_err(|why| format!("password={file}: {why}"))?;
            let password = text.trim_end_matches(['\r', '\n']).as_bytes().to_vec();
            let user = Credentials { name: name.into_bytes(), password };
            let fits = socks_client::credentials(&user).is_some();
            Some(fits.then_some(user).ok_or("user and password have 1 to 255 bytes each")?)
        }
        _ => return Err("user= and password= are given together or not at all".to_owned()),
    };
    Ok(Arc::new(SocksFactory(Arc::new(Proxy { via, user }))))
}

/// `HOST:PORT`, the host an address or a name.
fn address(text: &str) -> Option<Address> {
    if let Ok(ip) = text.parse() {
        return Some(Address::Ip(ip));
    }
    let (host, port) = text.rsplit_once(':')?;
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name = !host.is_empty() && host.len() <= 253 && host.chars().all(fine);
    Some(Address::Name(name.then(|| host.to_owned())?, port.parse().ok()?))
}

impl Factory for SocksFactory {
    fn name(&self) -> &'static str {
        "socks"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Socks {
            proxy: self.0.clone(),
            stage: Stage::Through,
            to: None,
            inbox: BytesMut::new(),
            early: Early::default(),
            room: true,
        })
    }

    fn takes_names(&self) -> bool {
        true
    }
}

impl Socks {
    /// Answers what the proxy said, as far as it has said it.
    fn talk(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        while !matches!(self.stage, Stage::Through | Stage::Over) {
            let said = match self.stage {
                Stage::Choice => {
                    self.hear(socks_client::choice)?.map(|method| self.greeted(method))
                }
                Stage::Verdict => self.hear(socks_client::verdict)?.map(|right| match right {
                    true => self.ask(),
                    false => Err(denied("the proxy refuses the user or the password")),
                }),
                Stage::Reply => match self.hear(socks_client::reply)? {
                    Some(Ok(())) => return self.rise(cx),
                    Some(Err(why)) => Some(Err(Refusal(why, format!("the proxy says: {why}")))),
                    None => None,
                },
                _ => None,
            };
            let Some(said) = said.transpose()? else { break };
            let _ = cx.output(FIRST).write(said.into());
        }
        Ok(())
    }

    /// Takes a message, if it is here whole.
    fn hear<T>(&mut self, parse: impl Fn(&[u8]) -> Parsed<T>) -> Result<Option<T>, Refusal> {
        match parse(&self.inbox) {
            Parsed::Whole(message, length) => {
                let _ = self.inbox.split_to(length);
                Ok(Some(message))
            }
            Parsed::Short => Ok(None),
            Parsed::Wrong(why) => Err(Refusal(Failure::Unreachable, format!("the proxy: {why}"))),
        }
    }

    fn greeted(&mut self, method: Option<Method>) -> Result<Vec<u8>, Refusal> {
        match (method, &self.proxy.user) {
            (Some(Method::None), _) => self.ask(),
            (Some(Method::Password), Some(user)) => {
                self.stage = Stage::Verdict;
                socks_client::credentials(user).ok_or(denied("the password is too long"))
            }
            _ => Err(denied("the proxy wants another way of saying who one is")),
        }
    }

    fn ask(&mut self) -> Result<Vec<u8>, Refusal> {
        self.stage = Stage::Reply;
        let request = self.to.as_ref().and_then(socks_client::request);
        request.ok_or(Refusal(Failure::Unreachable, "a name that SOCKS5 cannot say".to_owned()))
    }

    /// The proxy has connected: bytes pass.
    fn rise(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        self.stage = Stage::Through;
        cx.set_timer(ANSWER, None);
        cx.upstream().connected(Ok(()));
        let (pieces, end) = self.early.take();
        for data in pieces {
            let _ = cx.output(FIRST).write(data);
        }
        match end {
            Some(End::Close) => cx.output(FIRST).close(),
            Some(End::Shutdown) => cx.output(FIRST).shutdown(Half::Write),
            None => {}
        }
        cx.upstream().may_write(self.room);
        let rest = self.inbox.split().freeze();
        if !rest.is_empty() {
            let _ = cx.upstream().avail(rest);
        }
        Ok(())
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

fn denied(why: &str) -> Refusal {
    Refusal(Failure::Denied, why.to_owned())
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
                self.stage = Stage::Choice;
                cx.set_timer(ANSWER, Some(cx.now() + PATIENCE));
                let greeting = socks_client::greeting(self.proxy.user.is_some());
                let _ = cx.output(FIRST).write(greeting.into());
            }
            Err(why) => {
                let line = format!("the proxy {}: {why}", self.proxy.via);
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

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        if !self.waits() {
            return cx.upstream().avail(data);
        }
        self.inbox.extend_from_slice(&data);
        if let Err(refusal) = self.talk(cx) {
            self.refuse(cx, refusal);
        }
        self.stage != Stage::Over
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
            true => self.refuse(cx, Refusal(why, format!("the connection to the proxy: {why}"))),
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
