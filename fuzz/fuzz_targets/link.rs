//! The text of a link's settings: what reads is printed so that it reads back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::link::LinkConfig;

fuzz_target!(|text: &str| {
    match text.parse::<LinkConfig>() {
        Ok(config) => {
            config.check().expect("what was read has been checked");
            let printed = config.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&config), "{printed}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
