//! The binary `viaduct`, with the handlers that come with Viaduct.

fn main() -> std::process::ExitCode {
    viaduct::main(viaduct::handlers())
}
