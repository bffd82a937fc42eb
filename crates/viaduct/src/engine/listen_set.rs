//! Listen set of a proxy: its listeners, and its source of SYNs. Both are opened here, or inherited
//! from a service manager or, with `--on-demand`, from the parent process.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use tracing::warn;
use viaduct_sys::capture::filter::{Share, SynFilter};
use viaduct_sys::capture::syn::SynTap;
use viaduct_sys::nft::nfqueue::NfQueue;
use viaduct_sys::process::inherited_fds;
use viaduct_sys::socket::tcp::{self, TcpOptions};

use crate::tunnel::InheritedTunnels;

/// Backlog of each listener: connections ready to be accepted.
pub(super) const BACKLOG: u32 = 4096;

/// Source of SYNs.
#[derive(Debug)]
pub enum SynSource {
    /// No source: a flow begins when its client is accepted.
    Unseen,
    /// Copies of SYNs.
    Tap(SynTap),
    /// The SYNs themselves, held until a verdict.
    Queue(NfQueue),
}

/// Listeners of one event loop, and their source of SYNs.
#[derive(Debug)]
pub struct ListenSet {
    /// Number of the event loop, from 0.
    pub number: u32,
    /// Listening sockets.
    pub listeners: Vec<TcpListener>,
    /// Source of the SYNs to these listeners.
    pub syns: SynSource,
    /// Sockets for links of tunnels, if another process hands them over; otherwise the tunnels open
    /// their own.
    pub tunnels: Option<InheritedTunnels>,
}

/// Requested source of SYNs.
#[derive(Clone, Copy, Debug)]
pub struct SynSourceConfig<'a> {
    /// Filter of SYNs by destination.
    pub filter: SynFilter<'a>,
    /// Number of the queue that holds SYNs, and maximum number of SYNs in it; `None` if copies of
    /// SYNs are seen instead.
    pub held: Option<(u16, u32)>,
    /// True if SYNs may go unseen when this process lacks `CAP_NET_RAW`, which the tap requires.
    pub may_be_late: bool,
}

/// Descriptor that the parent process has left open for this one; written as `tap=5`, for example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InheritedFd {
    kind: FdKind,
    fd: RawFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FdKind {
    Listen,
    Tap,
    Queue,
}

impl ListenSet {
    /// Opens the source of SYNs that `wanted` describes, and then listens at `listen`. In this
    /// order, every SYN that a listener answers is seen. Sockets that a service manager has passed
    /// are used instead of new ones.
    pub fn open(
        listen: &[SocketAddr],
        wanted: Option<SynSourceConfig<'_>>,
        options: TcpOptions,
    ) -> Result<ListenSet> {
        let given =
            inherited_fds::listen_fds().context("cannot take the sockets that LISTEN_FDS names")?;
        let syns = SynSource::open(wanted)?;
        let mut given: Vec<TcpListener> = given.into_iter().map(TcpListener::from).collect();
        let mut listeners = Vec::new();
        for &at in listen {
            let is_here = |one: &TcpListener| one.local_addr().is_ok_and(|here| here == at);
            let listener = match given.iter().position(is_here) {
                Some(n) => tcp::adopt(given.swap_remove(n), options),
                None => tcp::listen(at, BACKLOG, options),
            };
            listeners.push(listener.with_context(|| format!("listen: cannot use {at}"))?);
        }
        if let Some(one) = given.first() {
            let at = one.local_addr().map_or("no address".to_owned(), |at| at.to_string());
            bail!(
                "the service manager listens at {at}, which is not one of the configured \
                 listen addresses"
            );
        }
        Ok(ListenSet { number: 0, listeners, syns, tunnels: None })
    }

    /// Like [`open`](ListenSet::open), for `loops` event loops with listeners of their own. Fails
    /// if another process listens at one of the addresses.
    pub fn open_for(
        loops: u32,
        listen: &[SocketAddr],
        wanted: Option<SynSourceConfig<'_>>,
        options: TcpOptions,
    ) -> Result<Vec<ListenSet>> {
        if loops == 1 {
            return Ok(vec![ListenSet::open(listen, wanted, options)?]);
        }
        for &at in listen {
            let free = tcp::check_free(at, options);
            free.with_context(|| {
                format!("listen: cannot use {at} exclusively, which several workers require")
            })?;
        }
        let options = TcpOptions { shared: true, ..options };
        let mut all = Vec::new();
        for number in 0..loops {
            let share = Some(Share { number, of: loops });
            let own =
                wanted.map(|of| SynSourceConfig { filter: SynFilter { share, ..of.filter }, ..of });
            all.push(ListenSet { number, ..ListenSet::open(listen, own, options)? });
        }
        for listener in &all[0].listeners {
            tcp::distribute(listener, loops).context("cannot share connections among workers")?;
        }
        Ok(all)
    }

    /// Takes over descriptors that the parent process has left open. A queue of SYNs has the number
    /// `number` and holds at most `held` SYNs.
    pub fn inherited(fds: &[InheritedFd], number: u16, held: u32) -> Result<ListenSet> {
        let (mut listeners, mut syns) = (Vec::new(), SynSource::Unseen);
        for inherited in fds {
            let fd = inherited_fds::take(inherited.fd)
                .with_context(|| format!("cannot take over {inherited}"))?;
            match inherited.kind {
                FdKind::Listen => listeners.push(TcpListener::from(fd)),
                FdKind::Tap => syns = SynSource::Tap(SynTap::inherited(fd)),
                FdKind::Queue => syns = SynSource::Queue(NfQueue::inherited(fd, number, held)),
            }
        }
        if listeners.is_empty() {
            bail!("--inherited: none of the descriptors is a listener");
        }
        Ok(ListenSet { number: 0, listeners, syns, tunnels: None })
    }

    /// Descriptors for a child to inherit, and their description for its command line.
    pub fn exported(&self) -> (Vec<BorrowedFd<'_>>, Vec<InheritedFd>) {
        let listeners = self.listeners.iter().map(|one| (FdKind::Listen, one.as_fd()));
        let syns = match &self.syns {
            SynSource::Unseen => None,
            SynSource::Tap(tap) => Some((FdKind::Tap, tap.as_fd())),
            SynSource::Queue(queue) => Some((FdKind::Queue, queue.as_fd())),
        };
        let all = listeners.chain(syns);
        all.map(|(kind, fd)| (fd, InheritedFd { kind, fd: fd.as_raw_fd() })).unzip()
    }
}

impl SynSource {
    fn open(wanted: Option<SynSourceConfig<'_>>) -> Result<SynSource> {
        match wanted {
            None => Ok(SynSource::Unseen),
            Some(SynSourceConfig { held: Some((number, most)), .. }) => {
                let queue = NfQueue::open(number, most).with_context(|| {
                    format!(
                        "cannot hold SYNs in queue {number}: this needs root or CAP_NET_ADMIN, a \
                         kernel with NFQUEUE, and no other reader of the queue; --accept early \
                         works without the queue"
                    )
                })?;
                Ok(SynSource::Queue(queue))
            }
            Some(SynSourceConfig { filter, may_be_late, .. }) => match SynTap::open(filter) {
                Ok(tap) => Ok(SynSource::Tap(tap)),
                Err(error) if may_be_late && error.kind() == ErrorKind::PermissionDenied => {
                    if filter.share.is_none_or(|share| share.number == 0) {
                        let what = "flows are forwarded late, which costs them a round trip";
                        warn!("cannot watch for SYNs without root or CAP_NET_RAW: {what}");
                    }
                    Ok(SynSource::Unseen)
                }
                Err(error) => {
                    Err(error).context("cannot watch for SYNs: run as root, or add --forward late")
                }
            },
        }
    }
}

/// Prefixes of the destinations that these listeners serve.
pub fn prefixes(listen: &[SocketAddr]) -> Vec<(IpAddr, u8)> {
    let any = |ip: &str| (ip.parse().expect("an address"), 0);
    let one = |at: &SocketAddr| match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![any("0.0.0.0")],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![any("0.0.0.0"), any("::")],
        ip @ IpAddr::V4(_) => vec![(ip, 32)],
        ip @ IpAddr::V6(_) => vec![(ip, 128)],
    };
    let mut all: Vec<_> = listen.iter().flat_map(one).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl std::fmt::Display for InheritedFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            FdKind::Listen => "listen",
            FdKind::Tap => "tap",
            FdKind::Queue => "queue",
        };
        write!(f, "{kind}={}", self.fd)
    }
}

impl FromStr for InheritedFd {
    type Err = String;
    fn from_str(text: &str) -> Result<InheritedFd, String> {
        let wrong = || format!("{text:?}: a descriptor as in tap=5 is expected");
        let (kind, fd) = text.split_once('=').ok_or_else(wrong)?;
        let kind = match kind {
            "listen" => FdKind::Listen,
            "tap" => FdKind::Tap,
            "queue" => FdKind::Queue,
            _ => return Err(wrong()),
        };
        Ok(InheritedFd { kind, fd: fd.parse().map_err(|_| wrong())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_fds_parse_from_their_text() {
        for text in ["listen=3", "tap=17", "queue=4"] {
            assert_eq!(text.parse::<InheritedFd>().unwrap().to_string(), text);
        }
        assert!("window=3".parse::<InheritedFd>().unwrap_err().contains("tap=5"));
    }

    #[test]
    fn prefixes_cover_the_listeners_destinations() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let own = prefixes(&[at("10.0.0.1:80"), at("10.0.0.1:81"), at("[fd00::1]:80")]);
        assert_eq!(own, [("10.0.0.1".parse().unwrap(), 32), ("fd00::1".parse().unwrap(), 128)]);
        assert_eq!(prefixes(&[at("[::]:80")]).len(), 2);
    }
}
