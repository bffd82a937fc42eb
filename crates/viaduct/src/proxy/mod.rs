//! `viaduct proxy`: one hop of a chain of proxies. The proxy terminates clients' TCP connections,
//! and begins the connection to the server or to the next hop as soon as it sees a client's SYN
//! (Miniproxy, section 3). The [engine](crate::engine) carries the flows, and
//! [settings](crate::settings) has its configuration. This module adds the rules that divert
//! connections to the proxy, and the start on demand.
//!
//! ```text
//!   options, config ──▶ settings ──▶ startup: listen sets, rules ──▶ engine::loops
//!   reconciler: keeps the interception rules ──▶ engine::intercept
//!   on_demand: parent process that listens, and starts the proxy on a SYN
//!   takeover: continues a running proxy in this process (viaduct upgrade)
//!   config_handoff: the config that the parent has checked, for the proxies that it starts
//! ```

mod config;
mod config_handoff;
mod on_demand;
mod options;
mod reconciler;
mod startup;
mod takeover;

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use tracing::info;
use viaduct_proto::flow::Registry;
use viaduct_sys::process::memory;

use self::config_handoff::ConfigHandoff;
use self::on_demand::{OnDemandParent, SignalPipes};
pub use self::options::{ProxyOptions, check_beside_config};
use self::reconciler::RuleReconciler;
use crate::engine::config::EngineConfig;
use crate::engine::control::{self, ControlInputs, Load};
use crate::engine::handle::Handle;
use crate::engine::intercept::InterceptState;
use crate::engine::listen_set::ListenSet;
use crate::engine::loops::Loops;
use crate::engine::upgrade::ProxyHandover;
use crate::handover::{self, ConfigText, ProgramFile, Upgrader};
use crate::metrics;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::status_socket::{Name, check_free};
use crate::stdout::{print, print_line};

/// Runs a proxy until a signal terminates it.
pub fn run(options: &ProxyOptions, registry: Registry) -> Result<()> {
    if let Some(socket) = options.takeover {
        return takeover::run(options, registry, socket);
    }
    if let Some(confinement) = options.confined {
        // The directories of other hops and of the agent are hidden: their sockets trust the
        // agent's user, and this process may run as that user.
        let hidden = ["..", "../.."].map(Path::new);
        confinement.enter(&hidden).context("cannot confine this process")?;
    }
    // Signals are registered before the config is read: if the config changes later, the parent
    // (`--on-demand`, or a hop agent) sends SIGHUP.
    let early = (!options.inherited.is_empty()).then(Signals::register).transpose()?;
    let (settings, text) = config::load_with_text(options, &registry)?;
    check_free(&settings.engine.socket())?;
    if settings.on_demand && options.inherited.is_empty() {
        let handoff =
            ConfigHandoff::new(options.clone(), registry, settings.clone(), text.as_deref())?;
        return run_on_demand(&settings, handoff);
    }
    let signals = early.map_or_else(Signals::register, Ok)?;
    // Dropping the changes reverts them.
    let (listen_sets, changes) = startup::open(&settings, &options.inherited)?;
    let intercept_state = Arc::<InterceptState>::default();
    let _reconciler =
        RuleReconciler::start(changes, settings.intercept.as_ref(), &intercept_state)?;
    let access_log = settings.access_log.open()?;
    let loops = Loops::new(&settings.engine, listen_sets, &intercept_state, access_log.clone())?;
    let handle = Handle::new(settings.engine.clone(), &loops, intercept_state);
    let metrics = settings.metrics.map(metrics::bind).transpose()?;
    let (inputs, upgrader) = control_inputs(options, &settings, registry, text, &handle, metrics)?;
    let control = control::prepare(inputs, handle, signals)?;
    if options.rehearse {
        return Ok(());
    }
    // The socket for upgrades is opened before the status socket, so that clients of the status
    // socket find both.
    let _requests = upgrader.map(|upgrader| serve_requests(&settings, upgrader)).transpose()?;
    let _status = control.start()?;
    log_start(&settings);
    memory::drop_clean_pages()?;
    let ended = loops.run();
    access_log.flush();
    ended.context("the proxy stopped")
}

fn log_start(settings: &Settings) {
    let EngineConfig { name, listen, target, tunnels, .. } = &settings.engine;
    let tunnels = tunnels.as_ref().and_then(|of| of.listen).map(tracing::field::display);
    info!(name, ?listen, tunnel_listen = tunnels, to = %target, "up");
}

/// Opens the socket for requests to upgrade, and answers them.
fn serve_requests(settings: &Settings, upgrader: Arc<Upgrader>) -> Result<Name> {
    let (listener, name) = handover::bind(&settings.engine.upgrade_socket())?;
    handover::serve(listener, upgrader)?;
    name.publish()
}

/// Returns the inputs of the control side of `proxy`, whose config file has the text `text`, and
/// the upgrader. There is no upgrader in a proxy that a parent has started (`--on-demand`, or a hop
/// agent).
fn control_inputs(
    options: &ProxyOptions,
    settings: &Settings,
    registry: Registry,
    text: Option<String>,
    proxy: &Handle,
    metrics: Option<std::net::TcpListener>,
) -> Result<(ControlInputs, Option<Arc<Upgrader>>)> {
    let text = ConfigText::new(text);
    let copy =
        metrics.as_ref().map(|listener| listener.as_fd().try_clone_to_owned()).transpose()?;
    let (send, outcomes) = tokio::sync::mpsc::unbounded_channel();
    let upgrader = match options.inherited.is_empty() {
        true => {
            let program = ProgramFile::running()?;
            let service = Box::new(ProxyHandover::new(text.clone(), proxy, copy));
            Some(Arc::new(Upgrader::new(program, settings.engine.socket(), service, send)))
        }
        false => None,
    };
    let load = options.config.is_some().then(|| load(options, settings, registry, text));
    let upgrade = upgrader.clone().map(|upgrader| (upgrader, outcomes));
    let takes_over = options.takeover.is_some();
    Ok((ControlInputs { load, metrics, upgrade, takes_over }, upgrader))
}

/// Returns a function that reloads the settings from the config file of `options`, and refuses
/// changes that need a restart. `settings` are the initial settings. Each reload sets `text` to the
/// text of the file.
fn load(options: &ProxyOptions, settings: &Settings, registry: Registry, text: ConfigText) -> Load {
    let (options, mut current) = (options.clone(), settings.clone());
    Box::new(move || {
        let (new, read) = config::load_with_text(&options, &registry)?;
        current.check_change(&new)?;
        text.set(read);
        current = new;
        Ok(current.engine.clone())
    })
}

/// Runs the parent of on-demand proxies until a signal terminates it.
fn run_on_demand(settings: &Settings, handoff: ConfigHandoff) -> Result<()> {
    let calls = SignalPipes::register()?;
    let (listen_sets, changes) = startup::open(settings, &[])?;
    let [listen_set] = <[ListenSet; 1]>::try_from(listen_sets)
        .map_err(|_| anyhow!("on-demand: one loop is expected"))?;
    let intercept_state = Arc::<InterceptState>::default();
    let _reconciler =
        RuleReconciler::start(changes, settings.intercept.as_ref(), &intercept_state)?;
    let parent = OnDemandParent::new(listen_set, calls, handoff, intercept_state);
    parent.rehearse()?;
    info!(name = settings.engine.name, listen = ?settings.engine.listen, "up on demand");
    parent.run().context("the parent of on-demand proxies stopped")
}

/// Checks the options and prints their meaning; changes nothing.
pub fn check(options: &ProxyOptions, registry: &Registry) -> Result<()> {
    let settings = config::load(options, registry)?;
    print(&settings.to_string())?;
    for warning in settings.warnings() {
        print_line!("warning: {warning}")?;
    }
    print_line!("ok")
}
