//! Hand-off of the config to on-demand proxies: each proxy gets the text that the parent has last
//! checked. A proxy therefore starts with the settings of the parent's listeners, even if the file
//! has been edited in the meantime.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{MemfdFlags, memfd_create};
use viaduct_proto::flow::Registry;

use super::config::load_with_text;
use super::options::ProxyOptions;
use crate::settings::Settings;

/// Current config, which is passed to each new proxy.
#[derive(Debug)]
pub struct ConfigHandoff {
    options: ProxyOptions,
    registry: Registry,
    settings: Settings,
    /// Text of the config, in memory that proxies inherit; `None` if all options are on the
    /// command line.
    text: Option<File>,
}

impl ConfigHandoff {
    /// Stores the config: the `text` of the file that `options` name, and the resulting `settings`.
    ///
    /// # Errors
    /// The memory file for the text cannot be created.
    pub fn new(
        options: ProxyOptions,
        registry: Registry,
        settings: Settings,
        text: Option<&str>,
    ) -> Result<ConfigHandoff> {
        let keep = |text: &str| -> std::io::Result<File> {
            let file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
            replace(&file, text)?;
            Ok(file)
        };
        let text = text.map(keep).transpose().context("cannot keep the config for proxies")?;
        Ok(ConfigHandoff { options, registry, settings, text })
    }

    /// Reads the file again. Later proxies get the new text if it is valid and needs no restart.
    ///
    /// # Errors
    /// A line with the reason; the settings are unchanged.
    pub fn read_again(&mut self) -> Result<()> {
        let (new, text) = load_with_text(&self.options, &self.registry)?;
        let (Some(file), Some(text)) = (&self.text, text) else {
            return Err(anyhow!("there is no config file to read again (--config)"));
        };
        self.settings.check_change(&new)?;
        replace(file, &text).context("cannot keep the config for proxies")?;
        self.settings = new;
        Ok(())
    }

    /// Descriptor of the config's text, for proxies to inherit.
    pub fn exported(&self) -> Option<BorrowedFd<'_>> {
        self.text.as_ref().map(AsFd::as_fd)
    }

    /// Number of the descriptor of [`ConfigHandoff::exported`], for [`path_of`].
    pub fn number(&self) -> Option<RawFd> {
        self.text.as_ref().map(|text| text.as_raw_fd())
    }
}

/// Path at which a proxy can open the config of the inherited descriptor `number`.
pub fn path_of(number: RawFd) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

fn replace(file: &File, text: &str) -> std::io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}
