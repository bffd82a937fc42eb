//! End-to-end test of the example: a flow passes through the `rot13` handler.
#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_flow_passes_through_a_handler_of_another_crate() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().to_string();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run_dir = std::env::temp_dir().join(format!("viaduct-rot13-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct-rot13"));
    command.args(["proxy", "--listen", &free.to_string(), "--to", &to, "--forward", "late"]);
    command.args(["--handler", "count", "--handler", "rot13"]).arg("--run-dir").arg(&run_dir);
    let _proxy = Proxy(command.spawn().unwrap());

    let deadline = Instant::now() + Duration::from_secs(10);
    let mut client = loop {
        match TcpStream::connect(free) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < deadline, "the proxy is not up: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    client.write_all(b"Uryyb, jbeyq!").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut flow = server.accept().unwrap().0;
    let (mut heard, mut answer) = (String::new(), String::new());
    flow.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "Hello, world!");
    flow.write_all(b"as it is").unwrap();
    drop(flow);
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "as it is");
    let _ = std::fs::remove_dir_all(&run_dir);
}
