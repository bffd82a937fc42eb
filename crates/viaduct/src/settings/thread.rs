//! Proxy in a process that also has other tasks: the split mode of a gateway, the SOCKS proxy of an
//! overlay node.

use anyhow::Result;

use super::Settings;
use crate::engine::handle::{EngineThread, WaitingLoops};
use crate::engine::upgrade::Inheritance;

/// Proxy in a thread. Its rules and its control side are left to the rest of the process.
#[derive(Debug)]
pub struct ProxyThread {
    /// Engine of the proxy.
    pub engine: EngineThread,
    settings: Settings,
}

impl ProxyThread {
    /// Starts a proxy in a thread. Errors: the proxy cannot listen, see SYNs, or open its access
    /// log.
    pub fn start(settings: Settings) -> Result<ProxyThread> {
        let listen_sets = settings.listen_sets()?;
        let access_log = settings.access_log.open()?;
        let engine = EngineThread::start(settings.engine.clone(), listen_sets, access_log)?;
        Ok(ProxyThread { engine, settings })
    }

    /// Continues a proxy of another process in a thread. The loops get its flows, and are then
    /// started. Errors: the other process listens elsewhere, or the access log cannot be opened.
    pub fn take_over(
        settings: Settings,
        mut inheritance: Inheritance,
    ) -> Result<(ProxyThread, WaitingLoops)> {
        let queue = (settings.syn_queue(), settings.max_held());
        let listen_sets = inheritance.listen_sets(&settings.engine, queue)?;
        let access_log = settings.access_log.open()?;
        let (engine, loops) =
            EngineThread::prepare(settings.engine.clone(), listen_sets, access_log)?;
        Ok((ProxyThread { engine, settings }, loops))
    }

    /// Current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Applies new settings; open flows continue. Errors: a setting has changed that needs a
    /// restart; in that case nothing is applied.
    pub fn reload(&mut self, new: Settings) -> Result<()> {
        self.settings.check_change(&new)?;
        self.engine.handle.reload(new.engine.clone());
        self.settings = new;
        Ok(())
    }
}
