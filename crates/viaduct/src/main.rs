//! The binary `viaduct`, with the handlers that come with it.

fn main() -> std::process::ExitCode {
    viaduct::main(viaduct::handlers())
}
