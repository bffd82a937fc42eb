//! Datagrams: let through or refused. Their destination never changes: datagrams for handlers
//! are held on their way ([`crate::datagrams`]).

use super::ends::ENDS;
use super::judge::{Fate, Fates, note};
use super::programs::{COOKIE, NOTE, say, tell_of_note};
use super::{Carry, Diversion, EVENT, Kind, Ours};
use crate::bpf::asm::{Asm, FP, Insn, R0, R1, R2, R6, Width};
use crate::bpf::events::Events;
use crate::bpf::kernel::Map;

/// The sendmsg program: lets through or refuses datagrams of sockets that are not connected.
pub(super) fn message(ours: &Ours<'_>, v4: bool) -> Vec<Insn> {
    let mut asm = Asm::default();
    asm.copy(R6, R1);
    note(&mut asm, NOTE, ENDS, v4);
    judge(&mut asm, ours, v4);
    asm.finish().expect("no more rules than jumps reach over")
}

/// Emits the verdict on datagrams to the noted destination, and the end of the program.
pub(super) fn judge(asm: &mut Asm, ours: &Ours<'_>, v4: bool) {
    let Ours { map, events, diversion, asked, netns } = *ours;
    let [divert, leave, refuse] = [(); 3].map(|()| asm.label());
    if let Some(asked) = asked {
        asked.ask(asm, NOTE, COOKIE, v4);
    }
    let rules = &diversion.datagrams;
    rules.judge(asm, NOTE, Fates { divert, leave, refuse });
    if rules.lead_to(Fate::Refuse) {
        asm.place(refuse);
        say(asm, events, diversion, Kind::RefusedDatagram);
        asm.exit(0);
    }
    if rules.lead_to(Fate::Leave) {
        asm.place(leave);
        say(asm, events, diversion, Kind::LeftDatagram);
        asm.exit(1);
    }
    if rules.lead_to(Fate::Divert) {
        asm.place(divert);
        match diversion.carry {
            Carry::Held => {
                // Datagrams of another namespace are not held.
                let elsewhere = asm.label();
                asm.if_in_other_namespace(R6, netns, elsewhere);
                asm.exit(1);
                asm.place(elsewhere);
                say(asm, events, diversion, Kind::RefusedDatagram);
                asm.exit(0);
            }
            Carry::Left => {
                say_once(asm, map, events, diversion, Kind::LeftDatagram);
                asm.exit(1);
            }
            Carry::Refused => {
                say_once(asm, map, events, diversion, Kind::RefusedDatagram);
                asm.exit(0);
            }
        }
    }
}

/// Emits a report to this process. Without [`Diversion::tells`] only the first is reported: a
/// user who expects handlers to see datagrams must learn that they do not.
fn say_once(
    asm: &mut Asm,
    map: &Map<ENDS>,
    events: &Events<EVENT>,
    diversion: &Diversion<'_>,
    kind: Kind,
) {
    if diversion.tells {
        return say(asm, events, diversion, kind);
    }
    // No socket has the cookie 0.
    let said = asm.label();
    asm.set(R2, 0);
    asm.store(Width::Double, FP, COOKIE, R2);
    asm.look_for(map, COOKIE, said);
    asm.keep(map, COOKIE, NOTE);
    asm.if_different(R0, 0, said);
    tell_of_note(asm, events, kind);
    asm.place(said);
}
