//! Hop signalling: passes a flow's source and destination to the next hop.
//!
//! ```text
//!   option      a TCP option in the SYN: the hop can go on at once       IPv4, and a BPF program
//!   proxy-tfo   a PROXY header as the SYN's data (Fast Open): likewise   any; else as below
//!   proxy       a PROXY header, the flow's first bytes                   any; widely supported
//! ```

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::ValueEnum;
use tracing::warn;
use viaduct_proto::split::option::Hop;
use viaduct_proto::split::proxy::{self, Addresses};
use viaduct_sys::bpf::SynOption;
use viaduct_sys::socket::tcp::{self, SynContent, TcpOptions};

use super::negotiation::Negotiation;
use super::parent_master::ParentMaster;
use super::policy::Policies;
use super::trickles;
use crate::tunnel::Outlet;
use crate::tunnel::settings::TunnelName;

/// Forms of hop signalling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HopSignalling {
    /// A TCP option in the SYN; IPv6 addresses do not fit into it and go as by proxy-tfo
    Option,
    /// A PROXY header (version 2) as the flow's first bytes
    Proxy,
    /// The same as the data of the SYN (TCP Fast Open)
    ProxyTfo,
}

/// Begins connections, with signalling for hops.
#[derive(Debug)]
pub struct Dialer {
    /// Configured form; without one, the option where it can be sent, otherwise the SYN's data.
    signalling: Option<HopSignalling>,
    /// Outlets into tunnels, by tunnel name.
    pub outlets: HashMap<TunnelName, Outlet>,
    /// Outlets by Trickles.
    pub trickles: trickles::Outlets,
    /// Negotiation with far ends, if there is one.
    pub negotiation: Option<Arc<Negotiation>>,
    /// Parent master that carries outbound flows, instead of the kernel.
    pub parent: Option<Arc<dyn ParentMaster>>,
    /// BPF program that writes options, loaded on first use; `None` inside if it cannot be
    /// loaded.
    program: OnceCell<Option<SynOption>>,
}

impl Dialer {
    /// Returns a dialer with this form of signalling.
    ///
    /// # Errors
    /// Options are required and cannot be written.
    pub fn new(signalling: Option<HopSignalling>, policies: &Policies) -> Result<Dialer> {
        let (outlets, program) = (HashMap::new(), OnceCell::new());
        let trickles = trickles::Outlets::default();
        let dialer =
            Dialer { signalling, outlets, trickles, negotiation: None, parent: None, program };
        dialer.prepare(policies)?;
        Ok(dialer)
    }

    /// Prepares signalling for the hops of `policies`.
    ///
    /// # Errors
    /// Options are required and cannot be written; another form is used.
    pub fn prepare(&self, policies: &Policies) -> Result<()> {
        let wanted =
            matches!(self.signalling, None | Some(HopSignalling::Option)) && policies.have_hops();
        if wanted && self.program().is_none() && self.signalling.is_some() {
            bail!("tell: cannot write TCP options (--tell proxy-tfo); the log says why");
        }
        Ok(())
    }

    /// Begins a connection to `to`, signalling `signalled`. Also returns the bytes to send as
    /// preface.
    pub fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        options: TcpOptions,
        signalled: Option<Addresses>,
    ) -> io::Result<(TcpStream, Vec<u8>)> {
        let connect = |telling: SynContent<'_>| tcp::connect_with(to, from, options, telling);
        let Some(signalled) = signalled else {
            return Ok((connect(SynContent::Nothing)?.0, Vec::new()));
        };
        let mut header = proxy::emit(&signalled);
        let telling = match self.signalling {
            Some(HopSignalling::Proxy) => SynContent::Nothing,
            Some(HopSignalling::ProxyTfo) => SynContent::Data(&header),
            None | Some(HopSignalling::Option) => match (Hop::of(&signalled), self.program()) {
                (Some(hop), Some(program)) => {
                    return Ok((connect(SynContent::Option(program, &hop.emit()))?.0, Vec::new()));
                }
                _ => SynContent::Data(&header),
            },
        };
        let (stream, said) = connect(telling)?;
        header.drain(..said);
        Ok((stream, header))
    }

    /// Begins a connection to `to` with the option of the client's SYN, which is for a hop
    /// further on. That hop waits for an option, whatever form is configured here.
    pub fn carry(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        options: TcpOptions,
        carries: Addresses,
    ) -> io::Result<(TcpStream, Vec<u8>)> {
        let option = Hop::of(&carries).map(|hop| hop.emit());
        let telling = match (self.program(), &option) {
            (Some(program), Some(option)) => SynContent::Option(program, option),
            _ => SynContent::Nothing,
        };
        let (stream, _) = tcp::connect_with(to, from, options, telling)?;
        Ok((stream, Vec::new()))
    }

    fn program(&self) -> Option<&SynOption> {
        let attach = || {
            let attached = SynOption::attach();
            attached.map_err(|e| warn!("no TCP option: {:#}", anyhow::Error::new(e))).ok()
        };
        self.program.get_or_init(attach).as_ref()
    }
}
