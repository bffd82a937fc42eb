//! Outbound to a hop. Hop signalling sends the hop a flow's source and destination.
//!
//! ```text
//!   option      a TCP option in the SYN: the hop can connect at once     IPv4 only; a BPF program
//!   proxy-tfo   a PROXY header as the SYN's data (Fast Open): likewise   falls back to proxy
//!   proxy       a PROXY header, the flow's first bytes                   widely supported
//! ```

use std::io;
use std::sync::OnceLock;

use anyhow::{Result, bail};
use clap::ValueEnum;
use tracing::warn;
use viaduct_proto::split::option::Hop;
use viaduct_proto::split::proxy;
use viaduct_proto::time::Instant;
use viaduct_sys::bpf::SynOption;
use viaduct_sys::socket::tcp::SynContent;

use super::direct::connect;
use super::{OpenRequest, Opened, Outbound};
use crate::engine::policy::Policies;

/// Forms of hop signalling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HopSignalling {
    /// A TCP option in the SYN; IPv6 addresses do not fit into it and are sent as by proxy-tfo
    Option,
    /// A PROXY header (version 2) as the flow's first bytes
    Proxy,
    /// A PROXY header (version 2) as the data of the SYN (TCP Fast Open)
    ProxyTfo,
}

/// Hop signalling of a loop.
#[derive(Debug)]
pub struct HopSignaller {
    /// Configured form; `None` means the option if it can be sent, and otherwise the SYN's data.
    form: Option<HopSignalling>,
    /// BPF program that writes options, loaded on first use; holds `None` if it cannot be loaded.
    program: OnceLock<Option<SynOption>>,
}

impl HopSignaller {
    /// Returns a signaller that uses `form`.
    pub fn new(form: Option<HopSignalling>) -> HopSignaller {
        HopSignaller { form, program: OnceLock::new() }
    }

    /// Checks that options can be written, if `policies` require them. Errors: they cannot.
    pub fn check(form: Option<HopSignalling>, policies: &Policies) -> Result<()> {
        let signaller = HopSignaller::new(form);
        if signaller.requires_options(policies) { signaller.prepare(policies) } else { Ok(()) }
    }

    fn requires_options(&self, policies: &Policies) -> bool {
        policies.tells().any(|tell| tell.or(self.form) == Some(HopSignalling::Option))
    }

    /// Prepares signalling for the hops of `policies`. Errors: options are configured and cannot be
    /// written. Flows then use the data of the SYN.
    pub fn prepare(&self, policies: &Policies) -> Result<()> {
        let mut forms = policies.tells().map(|tell| tell.or(self.form));
        let is_wanted = forms.any(|form| matches!(form, None | Some(HopSignalling::Option)));
        if is_wanted && self.program().is_none() && self.requires_options(policies) {
            bail!(
                "tell: cannot write TCP options, see the log; --tell proxy-tfo works without them"
            );
        }
        Ok(())
    }

    /// Begins a connection with an option in its SYN; `None` if there are no addresses, they do not
    /// fit, or options cannot be written.
    pub(super) fn open_by_option(&self, request: &OpenRequest) -> Option<io::Result<Opened>> {
        let option = Hop::of(request.signalled.as_ref()?)?.emit();
        let content = SynContent::Option(self.program()?, &option);
        Some(connect(request, content).map(|(conn, _)| conn.into()))
    }

    /// Program that writes options, if it can be loaded.
    fn program(&self) -> Option<&SynOption> {
        let attach = || {
            let attached = SynOption::attach();
            attached.map_err(|e| warn!("cannot set TCP options: {:#}", anyhow::Error::new(e))).ok()
        };
        self.program.get_or_init(attach).as_ref()
    }
}

impl Outbound for HopSignaller {
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        let form = request.tell.or(self.form);
        if matches!(form, None | Some(HopSignalling::Option))
            && let Some(opened) = self.open_by_option(request)
        {
            return opened;
        }
        let mut header = request.signalled.as_ref().map(proxy::emit).unwrap_or_default();
        let content = match form {
            Some(HopSignalling::Proxy) => SynContent::Nothing,
            None | Some(HopSignalling::Option | HopSignalling::ProxyTfo) => {
                SynContent::Data(&header)
            }
        };
        let (conn, sent) = connect(request, content)?;
        header.drain(..sent);
        Ok(Opened { conn, preface_out: header })
    }
}
