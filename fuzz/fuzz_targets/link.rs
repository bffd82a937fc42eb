//! The text of a link's settings: settings that parse can be printed and parsed again unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::link::LinkConfig;

fuzz_target!(|text: &str| {
    match text.parse::<LinkConfig>() {
        Ok(config) => {
            config.check().expect("parsed settings are valid");
            let printed = config.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&config), "{printed}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
