//! Command line in the syntax of the TESLA paper: `+crypt -key=site.key +migrate -- ssh mars`.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Expands the words of a command line of `run` or `master`: `+NAME -KEY=VALUE` becomes the option
/// `--handler`. Other words, and everything after `--`, are unchanged.
pub fn expand(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_none_or(|word| word != "run" && word != "master") {
        return words;
    }
    // `run --help HANDLER` explains the handler.
    if let [_, _, help, handler] = &words[..]
        && help == "--help"
        && words[1] == "run"
    {
        let explain = [OsString::from("--explain"), handler.clone()];
        return words.drain(..2).chain(explain).collect();
    }
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let rest = words.split_off(end);
    let mut expanded: Vec<OsString> = words.drain(..2).collect();
    // The handler to which the settings that follow belong.
    let mut handler: Option<OsString> = None;
    for word in words {
        if let (Some(spec), Some(setting)) = (&mut handler, setting(&word)) {
            let colon = spec.to_string_lossy().contains(':');
            spec.push(if colon { "," } else { ":" });
            spec.push(setting);
            continue;
        }
        expanded.extend(handler.take());
        match word.to_string_lossy().strip_prefix('+') {
            Some(spec) => handler = Some(format!("--handler={spec}").into()),
            None => expanded.push(word),
        }
    }
    expanded.extend(handler);
    expanded.extend(rest);
    expanded
}

/// Suggests the correct form of an unknown argument.
pub fn suggestion(error: &clap::Error) -> Option<String> {
    let ErrorKind::UnknownArgument = error.kind() else { return None };
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    if word.starts_with("--") {
        return None;
    }
    Some(if word.starts_with('-') {
        format!("{word}: settings must follow their handler, as in +crypt -key=site.key")
    } else {
        format!(
            "{word}: the program and its arguments must follow --, as in viaduct run +count -- \
                {word}"
        )
    })
}

/// Returns `-KEY=VALUE` without its dash.
fn setting(word: &OsStr) -> Option<String> {
    let text = word.to_str()?.strip_prefix('-')?;
    (!text.starts_with('-') && text.contains('=')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        let words = expand(line.split(' ').map(OsString::from));
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn handlers_and_their_settings_become_options() {
        assert_eq!(
            expanded("viaduct run +crypt -key=site.key -peer=x +migrate --strict -- ssh +x -a=b"),
            "viaduct run --handler=crypt:key=site.key,peer=x --handler=migrate --strict -- ssh +x \
                -a=b"
        );
        assert_eq!(
            expanded("viaduct run +shape:in=1M -out=2M"),
            "viaduct run --handler=shape:in=1M,out=2M"
        );
        assert_eq!(expanded("viaduct run --help crypt"), "viaduct run --explain crypt");
        let other = "viaduct proxy +x -a=b";
        assert_eq!(expanded(other), other);
    }
}
