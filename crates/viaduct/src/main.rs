//! The one binary.

fn main() -> std::process::ExitCode {
    viaduct::main(viaduct::handlers())
}
