//! What proxies on demand are told: the config as their parent has checked it last. Whatever becomes of
//! the file meanwhile, each proxy that starts is what its parent holds the doors for.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{MemfdFlags, memfd_create};
use viaduct_proto::flow::Registry;

use super::options::ProxyOptions;
use super::settings::Settings;

/// The config in force.
#[derive(Debug)]
pub struct Told {
    options: ProxyOptions,
    registry: Registry,
    settings: Settings,
    /// Its text, in memory that proxies inherit; `None` if all was said on the command line.
    text: Option<File>,
}

impl Told {
    /// `text` is what `options` have named, and means `settings`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(
        options: ProxyOptions,
        registry: Registry,
        settings: Settings,
        text: Option<&str>,
    ) -> Result<Told> {
        let keep = |text: &str| -> std::io::Result<File> {
            let file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
            replace(&file, text)?;
            Ok(file)
        };
        let text = text.map(keep).transpose().context("keep the config for proxies")?;
        Ok(Told { options, registry, settings, text })
    }

    /// Reads the file again; proxies are told the new text if it is right and needs no restart.
    ///
    /// # Errors
    /// Nothing has changed then: one line that says why.
    pub fn read_again(&mut self) -> Result<()> {
        let (new, text) = Settings::read(&self.options, &self.registry)?;
        let (Some(file), Some(text)) = (&self.text, text) else {
            return Err(anyhow!("there is no config file to read again (--config)"));
        };
        self.settings.check_change(&new)?;
        replace(file, &text).context("keep the config for proxies")?;
        self.settings = new;
        Ok(())
    }

    /// What a proxy inherits of it.
    pub fn legacy(&self) -> Option<BorrowedFd<'_>> {
        self.text.as_ref().map(AsFd::as_fd)
    }

    /// Its number, for [`path_of`].
    pub fn number(&self) -> Option<RawFd> {
        self.text.as_ref().map(|text| text.as_raw_fd())
    }
}

/// Where a proxy finds the text that it has inherited.
pub fn path_of(number: RawFd) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

fn replace(file: &File, text: &str) -> std::io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}
