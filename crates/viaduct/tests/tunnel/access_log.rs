//! Access logs of the two ends of a tunnel.

use std::path::Path;

use serde_json::Value;

use super::*;
use crate::common::within_some;

/// Waits until the common log of both ends has `lines` lines of flows to `to`, and returns these.
fn logged(log: &Path, to: &str, lines: usize) -> Vec<Value> {
    let of = format!("CONNECT {to} ");
    let read = || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let all = whole.map(|line| serde_json::from_str(line).unwrap());
        let all: Vec<Value> =
            all.filter(|line: &Value| line["request"].as_str().unwrap().starts_with(&of)).collect();
        (all.len() >= lines).then_some(all)
    };
    within_some(Duration::from_secs(10), read).expect("lines of the access logs")
}

/// Orders both lines of a flow: that of the near end, then that of the far end.
fn ends(lines: &[Value]) -> [&Value; 2] {
    ["tcp", "tunnel"].map(|end| lines.iter().find(|line| line["protocol"] == end).unwrap())
}

#[test]
fn both_ends_log_each_flow_and_open_the_file_again() {
    for carrier in CARRIERS {
        let scratch = Scratch::new().unwrap();
        let log = scratch.path().join("log");
        let options = format!("{carrier} --access-log-format json --access-log {}", log.display());
        let mut world = World::new("delay=1ms", &options);
        let ip = world.addresses()[0];
        let listener = world.listen(ip);
        let to = listener.local_addr().unwrap().to_string();

        let (mut client, mut server) = world.pair(&listener);
        let from = client.local_addr().unwrap();
        client.write_all(&random(1000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut server).len(), 1000);
        thread::sleep(Duration::from_millis(20));
        server.write_all(&random(3000)).unwrap();
        drop(server);
        assert_eq!(rest(&mut client).len(), 3000);
        let lines = logged(&log, &to, 2);
        let near_key = SecretKey::from_bytes([1; 32]).public().to_string();
        let [near, far] = ends(&lines);
        assert_eq!((&near["user"], &far["user"]), (&Value::Null, &near_key.into()));
        assert_eq!(far["request"], format!("CONNECT {to} TUNNEL"));
        for line in [near, far] {
            assert_eq!(line["client"], from.ip().to_string(), "{line}");
            assert_eq!(line["port"], from.port(), "{line}");
            assert_eq!((&line["received"], &line["sent"]), (&1000.into(), &3000.into()), "{line}");
            assert_eq!((&line["status"], &line["reason"]), (&200.into(), &Value::Null), "{line}");
            assert!(line["seconds"].as_f64().unwrap() >= 0.02, "{line}");
        }

        // SIGUSR1 reopens the file by its name.
        std::fs::rename(&log, scratch.path().join("old")).unwrap();
        for proxy in [&mut world.near, &mut world.far] {
            let pid = Pid::from_raw(proxy.process().id().cast_signed()).unwrap();
            kill_process(pid, Signal::USR1).unwrap();
            until("the log is reopened", || proxy.log().contains("access log reopened"));
        }
        let (mut client, mut server) = world.pair(&listener);
        // Makes sure that the flow is established: an immediate reset would look like a refusal.
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        for line in ends(&logged(&log, &to, 2)) {
            assert_eq!(
                (&line["status"], &line["reason"]),
                (&200.into(), &"reset".into()),
                "{line}"
            );
        }
        drop(client);

        // A destination outside --allow-to: the near end has already accepted the client when the
        // far end refuses the flow.
        drop(world.connect("10.3.0.1".parse().unwrap()));
        let [near, far] = [200, 403];
        for (line, status) in ends(&logged(&log, "10.3.0.1:9000", 2)).iter().zip([near, far]) {
            assert_eq!(line["status"], status, "{line}");
        }
    }
}
