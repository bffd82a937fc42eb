//! Every code under any loss, order and repetition of packets and repairs: recovered packets equal
//! those that were sent.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::Steps;
use viaduct_proto::fec::{
    AnyDecoder, Code, Cover, Decoder, Encoder, Recovered, Repair, Row, Seq, Sources, layered,
    reed_solomon, window,
};

#[derive(Arbitrary, Debug)]
struct Input {
    code: Parameters,
    first: u32,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Parameters {
    Layered { r: u8, interleaves: [u8; 3], delay_xors: bool },
    ReedSolomon { r: u8, c: u8, interleave: u8 },
    Window { window: u16, repairs: u16, packets: u16 },
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A packet of `len` + 1 bytes is sent.
    Send { len: u8, lost: bool },
    /// Traffic pauses.
    Flush { stage: u8 },
    /// The code changes, as it does in a running sender.
    Change(Parameters),
    /// A lost packet arrives late.
    Late { back: u8 },
    /// A repair in flight arrives; if it `stays`, it can arrive again.
    Repair { index: u8, stays: bool },
    /// Packets older than the one `back` before the newest are no longer needed.
    Settled { back: u8 },
}

/// Maximum number of repairs in flight; more are lost.
const MAX_REPAIRS: usize = 256;

impl Parameters {
    fn code(&self) -> Code {
        match *self {
            Parameters::Layered { r, interleaves, delay_xors } => {
                let interleaves = interleaves.map(u16::from).to_vec();
                Code::Layered(layered::Parameters { r, interleaves, delay_xors })
            }
            Parameters::ReedSolomon { r, c, interleave } => {
                let c = c % 16;
                Code::ReedSolomon(reed_solomon::Parameters { r, c, interleave: interleave.into() })
            }
            Parameters::Window { window, repairs, packets } => {
                Code::Window(window::Parameters { window, repairs: repairs % 16, packets })
            }
        }
    }
}

/// Repair in flight.
#[derive(Clone)]
struct Owned {
    cover: Cover,
    row: Row,
    len_code: [u8; 2],
    body: Vec<u8>,
}

struct Link {
    first: Seq,
    sent: Vec<Vec<u8>>,
    arrived: Vec<bool>,
    repairs: Vec<Owned>,
}

impl Sources for Link {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.arrived.get(index)?.then(|| self.sent[index].as_slice())
    }
}

impl Link {
    /// Returns the callback that stores the encoder's repairs.
    fn carry(repairs: &mut Vec<Owned>) -> impl FnMut(Repair<'_>) {
        |Repair { cover, row, len_code, body }| {
            assert!(!body.is_empty() && cover.count > 0);
            if repairs.len() < MAX_REPAIRS {
                repairs.push(Owned { cover, row, len_code, body: body.to_vec() });
            }
        }
    }

    fn recover(&mut self, recovered: &mut Recovered) {
        for (seq, packet) in recovered.iter() {
            let index = (seq - self.first) as usize;
            assert_eq!(packet, self.sent[index], "packet {seq}");
            assert!(
                !std::mem::replace(&mut self.arrived[index], true),
                "{seq} is recovered twice, or had arrived"
            );
        }
        recovered.clear();
    }

    /// Index of the packet `back` before the newest, if any.
    fn back(&self, back: u8) -> Option<usize> {
        self.sent.len().checked_sub(usize::from(back) + 1)
    }
}

fuzz_target!(|input: Input| {
    let first = u64::from(input.first) + 1;
    let Ok(mut encoder) = input.code.code().build_encoder(first) else { return };
    let mut decoder = AnyDecoder::new(1 << 20);
    let mut recovered = Recovered::new();
    let mut link = Link { first, sent: vec![], arrived: vec![], repairs: vec![] };
    for step in &input.steps.0 {
        match *step {
            Step::Send { len, lost } => send(&mut link, &mut *encoder, len, lost),
            Step::Flush { stage } => {
                encoder.flush(usize::from(stage), &mut Link::carry(&mut link.repairs));
            }
            Step::Change(ref parameters) => change(&mut link, &mut encoder, parameters),
            Step::Late { back } => {
                let Some(index) = link.back(back).filter(|&i| !link.arrived[i]) else { continue };
                link.arrived[index] = true;
                decoder.known(first + index as u64, &link, &mut recovered);
            }
            Step::Repair { index, stays } => {
                let Some(index) = usize::from(index).checked_rem(link.repairs.len()) else {
                    continue;
                };
                let repair = link.repairs[index].clone();
                if !stays {
                    link.repairs.remove(index);
                }
                let Owned { cover, row, len_code, ref body } = repair;
                decoder.repair(Repair { cover, row, len_code, body }, &link, &mut recovered);
            }
            Step::Settled { back } => {
                let Some(index) = link.back(back) else { continue };
                decoder.forget_below(first + index as u64);
            }
        }
        link.recover(&mut recovered);
    }
});

/// Sends a packet whose bytes are computed from its number and length.
fn send(link: &mut Link, encoder: &mut dyn Encoder, len: u8, lost: bool) {
    let number = link.sent.len();
    let byte = |i| (number * 31 + i * 7) as u8 ^ len;
    let packet: Vec<u8> = (0..usize::from(len) + 1).map(byte).collect();
    assert_eq!(encoder.next_seq(), link.first + number as u64);
    encoder.push(&packet, &mut Link::carry(&mut link.repairs));
    link.sent.push(packet);
    link.arrived.push(!lost);
}

fn change(link: &mut Link, encoder: &mut Box<dyn Encoder>, parameters: &Parameters) {
    for stage in 0..encoder.stages() {
        encoder.flush(stage, &mut Link::carry(&mut link.repairs));
    }
    if let Ok(next) = parameters.code().build_encoder(encoder.next_seq()) {
        *encoder = next;
    }
}
