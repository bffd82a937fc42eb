//! Settings from the command line or the config file.

use anyhow::{Context, Result, anyhow};
use viaduct_proto::flow::Registry;

use super::config_handoff::path_of;
use super::options::ProxyOptions;
use crate::settings::{Settings, file};

/// Loads the settings from `options`, with the handlers of `registry`.
///
/// # Errors
/// The settings cannot be read or are invalid. The message is one line: the position, the mistake
/// and a correct form.
pub fn load(options: &ProxyOptions, registry: &Registry) -> Result<Settings> {
    load_with_text(options, registry).map(|(settings, _)| settings)
}

/// Loads the settings like [`load`], and also returns the text of the config file, if there is one.
///
/// # Errors
/// Those of [`load`].
pub fn load_with_text(
    options: &ProxyOptions,
    registry: &Registry,
) -> Result<(Settings, Option<String>)> {
    let Some(path) = &options.config else {
        let settings = Settings::of(&options.args, &[], &[], registry)?;
        return Ok((settings.fitted(), None));
    };
    let load = || -> Result<_> {
        let handed_off = options.config_fd.map(path_of);
        let text = file::read(handed_off.as_ref().unwrap_or(path)).map_err(|what| anyhow!(what))?;
        Ok((Settings::of_config(&text, registry)?, Some(text)))
    };
    load().with_context(|| path.display().to_string())
}
