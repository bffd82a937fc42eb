//! Start of a proxy that takes over from a running process: all steps that can fail precede the
//! moment at which the old process stops accepting clients.

use std::os::fd::RawFd;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tracing::info;
use viaduct_proto::flow::Registry;
use viaduct_sys::process::inherited_fds;

use super::options::ProxyOptions;
use super::reconciler::RuleReconciler;
use super::{config, control_inputs, log_start};
use crate::access_log::AccessLog;
use crate::engine::control::{self, Prepared};
use crate::engine::handle::Handle;
use crate::engine::intercept::InterceptState;
use crate::engine::loops::Loops;
use crate::engine::upgrade::{Inheritance, take_flows};
use crate::handover::{self, Takeover};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::status_socket::Unpublished;

/// Proxy that is prepared, but does not accept clients yet.
struct PreparedProxy {
    settings: Settings,
    access_log: AccessLog,
    loops: Loops,
    control: Prepared,
    requests: Unpublished,
    intercept_state: Arc<InterceptState>,
    /// Reconciler that keeps the rules in place until it is dropped.
    _reconciler: Option<RuleReconciler>,
}

/// Continues the proxy of the process at the other end of the inherited descriptor `socket`.
pub fn run(options: &ProxyOptions, registry: Registry, socket: RawFd) -> Result<()> {
    let signals = Signals::register()?;
    let socket = inherited_fds::take(socket).context("there is no process to take over from")?;
    let mut takeover = Takeover::begin(socket)?;
    let inheritance = Inheritance::receive(&mut takeover)?;
    let prepared = prepare(options, registry, inheritance, signals);
    let mut proxy = takeover.or_refuse(prepared)?;
    let flows = take_flows(&mut takeover, &mut proxy.loops)?;
    // From now on this process is responsible for the changes, even if the old process is killed.
    if let Some(changes) = proxy.intercept_state.changes().as_mut() {
        changes.own();
    }
    takeover.confirm();
    // The socket for upgrades is published before the status socket: once the status socket is
    // replaced, the old process reports the end of the upgrade, and the next upgrade may be
    // requested immediately.
    let _requests = proxy.requests.publish()?;
    let _status = proxy.control.start()?;
    info!(flows, "taken over");
    log_start(&proxy.settings);
    let ended = proxy.loops.run();
    proxy.access_log.flush();
    ended.context("the proxy stopped")
}

fn prepare(
    options: &ProxyOptions,
    registry: Registry,
    mut inheritance: Inheritance,
    signals: Signals,
) -> Result<PreparedProxy> {
    let (settings, text) = config::load_with_text(options, &registry)?;
    if let Some(old) = &inheritance.config {
        let old = Settings::of_config(old, &registry).context("the config in force")?;
        old.check_change(&settings)?;
    }
    if settings.on_demand {
        bail!("on-demand: a proxy on demand cannot be handed over; restart it");
    }
    let queue = (settings.syn_queue(), settings.max_held());
    let listen_sets = inheritance.listen_sets(&settings.engine, queue)?;
    let changes = inheritance.changes(&settings.engine)?;
    let intercept_state = Arc::<InterceptState>::default();
    let _reconciler =
        RuleReconciler::start(changes, settings.intercept.as_ref(), &intercept_state)?;
    let access_log = settings.access_log.open()?;
    let loops = Loops::new(&settings.engine, listen_sets, &intercept_state, access_log.clone())?;
    let handle = Handle::new(settings.engine.clone(), &loops, intercept_state.clone());
    let metrics = inheritance.metrics.take();
    let (inputs, upgrader) = control_inputs(options, &settings, registry, text, &handle, metrics)?;
    let control = control::prepare(inputs, handle, signals)?;
    let (listener, requests) = handover::bind(&settings.engine.upgrade_socket())?;
    if let Some(upgrader) = upgrader {
        handover::serve(listener, upgrader)?;
    }
    Ok(PreparedProxy {
        settings,
        access_log,
        loops,
        control,
        requests,
        intercept_state,
        _reconciler,
    })
}
