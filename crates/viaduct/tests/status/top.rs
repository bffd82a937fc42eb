//! `viaduct top` on a terminal.

use rustix::process::{Pid, Signal, kill_process};

use super::pty::Pty;
use super::{Machine, line, text};

#[test]
fn services_are_watched_while_they_start_stop_and_are_opened() {
    let machine = Machine::new();
    let _master = machine.master("alone");
    let mut top = Pty::new(machine.viaduct(&["top"]), 80, 24);
    top.wait_for("the only service is opened", |screen| screen.contains("master alone"));
    assert!(!top.is_restored(), "keys are read one by one");
    top.press("\x1b");
    let list = top.wait_for("the list", |screen| screen.contains("1 service, up"));
    assert!(list.contains("alone"), "{list}");

    let (name, mut server) = machine.server();
    top.wait_for("a service that starts", |screen| screen.contains("2 services, all up"));
    top.press("\x1b[B\r");
    top.wait_for("the server's page", |screen| screen.contains("tcp       "));
    top.press("\x1b[D?");
    top.wait_for("the help", |screen| screen.contains("PgUp, PgDn"));
    top.press("?");
    top.wait_for("the list again", |screen| screen.contains("2 services"));

    server.kill().unwrap();
    server.wait().unwrap();
    let killed = "killed: it left its socket behind";
    let list = top.wait_for("a killed service", |screen| screen.contains("killed: "));
    assert!(list.contains("1 of them with a problem"), "{list}");
    top.resize(200, 24);
    top.wait_for("a wide terminal", |screen| screen.contains(killed));
    top.resize(30, 6);
    let narrow = top.wait_for("a narrow terminal", |screen| screen.contains('…'));
    let list: Vec<&str> = narrow.lines().filter(|line| line.contains("serve-")).collect();
    let width = |line: &str| strip(line).chars().count();
    assert!(list.iter().all(|line| width(line) <= 30) && !list.is_empty(), "{narrow}");
    assert!(narrow.lines().count() < 6, "{narrow}");
    std::fs::remove_file(machine.0.join(format!("{name}.sock"))).unwrap();
    top.resize(80, 24);
    top.wait_for("a service that is gone", |screen| screen.contains("stopped "));

    top.press("q");
    assert!(top.wait().success() && top.is_restored());
    assert!(top.output().ends_with("\x1b[?1049l"), "the screen is restored");
}

#[test]
fn a_signal_to_end_restores_the_terminal() {
    let machine = Machine::new();
    let _master = machine.master("alone");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut top = Pty::new(machine.viaduct(&["top"]), 80, 24);
        top.wait_for("the page", |screen| screen.contains("master alone"));
        top.signal(signal);
        assert!(top.wait().success() && top.is_restored());
        crate::common::until("the screen is restored", || top.output().ends_with("\x1b[?1049l"));
    }
}

#[test]
fn a_service_that_hangs_does_not_delay_the_others() {
    let machine = Machine::new();
    let _alone = machine.master("alone");
    let hung = machine.master("hung");
    let pid = Pid::from_raw(hung.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let mut top = Pty::new(machine.viaduct(&["top"]), 80, 24);
    let is_up = |screen: &str| {
        strip(screen).lines().any(|line| line.contains(" alone ") && line.contains(" up"))
    };
    let first = top.wait_for("the other service", is_up);
    assert!(!first.contains("does not answer"), "the other service is shown first: {first}");
    top.wait_for("the reason", |screen| screen.contains("it does not answer"));
    kill_process(pid, Signal::CONT).unwrap();
    top.wait_for("the end of the hang", |screen| screen.contains("2 services, all up"));
    top.press("\x03");
    assert!(top.wait().success());
}

#[test]
fn colours_are_off_by_request_and_without_a_terminal_a_second_is_printed() {
    let machine = Machine::new();
    let (_one, _two) = (machine.master("one"), machine.master("two"));
    let mut plain = machine.viaduct(&["top", "--name", "one"]);
    plain.env("NO_COLOR", "1");
    let mut top = Pty::new(plain, 80, 24);
    let screen = top.wait_for("the page", |screen| screen.contains("master one"));
    assert!(!screen.contains('\x1b'), "{screen:?}");
    top.press("\x1b\x1bq");
    assert!(top.wait().success(), "escape does not leave the only service");
    let output = machine.output(&["top"]);
    let page = text(&output.stdout);
    assert!(output.status.success() && line(&page, "two").ends_with("  up"), "{page}");
    assert!(!page.contains('\x1b') && page.lines().count() == 3, "{page}");
    let output = machine.output(&["top", "--name", "two"]);
    assert!(text(&output.stdout).contains("now       0 flows/s"), "{output:?}");
}

/// Text without colours.
fn strip(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('m').map_or(part, |(_, rest)| rest))
}
