//! A `viaduct` binary with one additional handler, `rot13`. Usage:
//! `viaduct-rot13 proxy --listen 127.0.0.1:7000 --to 127.0.0.1:80 --forward late --handler rot13`

use std::process::ExitCode;
use std::sync::Arc;

use viaduct::bytes::Bytes;
use viaduct::flow::{About, Context, FIRST, Factory, Handler};

struct Rot13;

impl Handler for Rot13 {
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        let turn = |&byte: &u8| match byte {
            b'a'..=b'm' | b'A'..=b'M' => byte + 13,
            b'n'..=b'z' | b'N'..=b'Z' => byte - 13,
            other => other,
        };
        cx.output(FIRST).write(data.iter().map(turn).collect())
    }
}

impl Factory for Rot13 {
    fn name(&self) -> &'static str {
        "rot13"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Rot13)
    }
}

fn main() -> ExitCode {
    let mut registry = viaduct::handlers();
    let about = About::new("rot13", "rotates letters by 13 in outgoing data");
    registry.add(about, |_| Ok(Arc::new(Rot13)));
    viaduct::main(registry)
}
