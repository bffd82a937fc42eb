//! Captures of traffic, in the formats of tcpdump and Wireshark.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

use super::packet::Packet;

/// Maximum length of a block in bytes.
const BUFFER: usize = 1 << 20;
/// Maximum number of packets of a capture; about 100 bytes of memory are used for each packet.
pub const MAX_PACKETS: usize = 20_000_000;

/// Content of a capture.
#[derive(Debug, Default)]
pub struct Capture {
    /// IP packets in order of time.
    pub packets: Vec<Packet>,
    /// Number of packets that are not IP, or of which too few bytes were captured.
    others: usize,
    /// True if the file has more packets than [`MAX_PACKETS`].
    is_cut: bool,
}

impl Capture {
    /// Summary of the capture in one line.
    pub fn summary(&self) -> String {
        let cut = if self.is_cut { "; the rest of the file was not read" } else { "" };
        format!("{} IP packets, {} other packets{cut}", self.packets.len(), self.others)
    }
}

#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    /// Units of time per second.
    resolution: u64,
    /// Offset of all times, in seconds.
    offset: i64,
}

/// Reads a capture. Errors: the file cannot be read, or is not a capture.
pub fn read(path: &Path) -> Result<Capture> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(file, path)
}

/// Parses the content of `path`.
fn parse(content: impl Read + Send, path: &Path) -> Result<Capture> {
    let what = || format!("{}: a capture (pcap or pcapng) is expected", path.display());
    let mut reader = create_reader(BUFFER, content).ok().with_context(what)?;
    let (mut interfaces, mut capture) = (Vec::new(), Capture::default());
    loop {
        match reader.next() {
            Ok((bytes, block)) => {
                if capture.packets.len() >= MAX_PACKETS {
                    capture.is_cut = true;
                    break;
                }
                take(&block, &mut interfaces, &mut capture).with_context(what)?;
                drop(block);
                reader.consume(bytes);
            }
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => {
                if reader.refill().is_err() {
                    bail!("cannot read {}", path.display());
                }
                // The last packet of an interrupted capture is often truncated.
                if reader.reader_exhausted() {
                    break;
                }
            }
            Err(error) => {
                let fault = fault(&error);
                let (at, packets) = (reader.consumed(), capture.packets.len() + capture.others);
                bail!("{}: damaged at byte {at}, after {packets} packets: {fault}", path.display());
            }
        }
    }
    capture.packets.sort_by_key(|packet| packet.at);
    Ok(capture)
}

/// Description of an error, without the bytes that could not be parsed.
fn fault(error: &PcapError<&[u8]>) -> String {
    match error {
        PcapError::BufferTooSmall => format!("a block longer than {} MiB", BUFFER >> 20),
        PcapError::NomError(_, kind) | PcapError::OwnedNomError(_, kind) => {
            format!("no valid block ({kind:?})")
        }
        other => other.to_string(),
    }
}

fn take(
    block: &PcapBlockOwned<'_>,
    interfaces: &mut Vec<Interface>,
    capture: &mut Capture,
) -> Result<()> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let resolution =
                if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            interfaces.push(Interface { link: known(header.network)?, resolution, offset: 0 });
        }
        PcapBlockOwned::Legacy(packet) => {
            let Some(of) = interfaces.first().copied() else { return Ok(()) };
            let at = u64::from(packet.ts_sec) * of.resolution + u64::from(packet.ts_usec);
            add(capture, of, at, packet.data, packet.origlen as usize);
        }
        // A new section has its own interfaces.
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(header)) => {
            interfaces.push(Interface {
                link: known(header.linktype)?,
                resolution: resolution(header.if_tsresol)?,
                offset: header.if_tsoffset,
            });
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let Some(of) = interfaces.get(packet.if_id as usize).copied() else { return Ok(()) };
            let at = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            let data = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
            add(capture, of, at, data, packet.origlen as usize);
        }
        PcapBlockOwned::NG(_) => {}
    }
    Ok(())
}

/// Units of time per second, from the option `if_tsresol` of an interface. `pcap_parser` itself
/// does not decode powers of two.
fn resolution(option: u8) -> Result<u64> {
    let (base, exponent) = if option & 0x80 == 0 { (10_u64, option) } else { (2, option & 0x7f) };
    let units = base.checked_pow(exponent.into());
    units.with_context(|| format!("times in units of {base}^-{exponent} s are not supported"))
}

/// Rejects link types with unknown headers.
fn known(link: Linktype) -> Result<Linktype> {
    match link {
        Linktype::ETHERNET
        | Linktype::RAW
        | Linktype::IPV4
        | Linktype::IPV6
        | Linktype::NULL
        | Linktype::LOOP
        | Linktype::LINUX_SLL
        | LINUX_SLL2
        | RAW_BSD => Ok(link),
        other => {
            bail!("link type {} is unknown; Ethernet, raw IP or Linux cooked is expected", other.0)
        }
    }
}

const LINUX_SLL2: Linktype = Linktype(276);
const RAW_BSD: Linktype = Linktype(12);

fn add(capture: &mut Capture, of: Interface, at: u64, data: &[u8], original: usize) {
    let seconds = at / of.resolution;
    let nanos = u128::from(at % of.resolution) * 1_000_000_000 / u128::from(of.resolution);
    let at = Duration::new(seconds.saturating_add_signed(of.offset), nanos as u32);
    let packet = payload(of.link, data).and_then(|packet| {
        Packet::parse(at, packet, original.saturating_sub(data.len() - packet.len()))
    });
    match packet {
        Some(packet) => capture.packets.push(packet),
        None => capture.others += 1,
    }
}

/// IP packet after the link-layer header; `None` if `data` is not an IP packet.
fn payload(link: Linktype, data: &[u8]) -> Option<&[u8]> {
    match link {
        Linktype::ETHERNET => {
            let mut at = 12;
            // VLAN tags.
            while matches!(data.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
                at += 4;
            }
            matches!(data.get(at..at + 2)?, [8, 0] | [0x86, 0xdd]).then(|| data.get(at + 2..))?
        }
        Linktype::LINUX_SLL => data.get(16..),
        LINUX_SLL2 => data.get(20..),
        Linktype::NULL | Linktype::LOOP => data.get(4..),
        _ => Some(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_tags_and_link_layer_headers_are_skipped() {
        let ip = [0x45, 0, 0, 20];
        let ethernet = |kinds: &[u8]| [&[0; 12][..], kinds, &ip].concat();
        for (link, data) in [
            (Linktype::ETHERNET, ethernet(&[8, 0])),
            (Linktype::ETHERNET, ethernet(&[0x81, 0, 0, 7, 8, 0])),
            (Linktype::LINUX_SLL, [&[0; 16][..], &ip].concat()),
            (LINUX_SLL2, [&[0; 20][..], &ip].concat()),
            (Linktype::RAW, ip.to_vec()),
        ] {
            assert_eq!(payload(link, &data), Some(&ip[..]), "{link:?}");
        }
        assert_eq!(payload(Linktype::ETHERNET, &ethernet(&[8, 6])), None);
        assert!(known(Linktype(105)).is_err());
    }

    #[test]
    fn resolutions_are_powers_of_ten_or_two() {
        let of = [6, 9, 0x94, 0x9e].map(|option| resolution(option).unwrap());
        assert_eq!(of, [1_000_000, 1_000_000_000, 1 << 20, 1 << 30]);
        assert!(resolution(0xff).is_err());
    }

    /// Returns the error for a section whose first packet is in a block of this length.
    fn damaged(length: u32) -> String {
        let words = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 6, length];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(2_000, 0xff);
        parse(&bytes[..], Path::new("near.pcap")).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_position_and_not_the_bytes() {
        let (short, long) = (damaged(8), damaged(2 << 20));
        assert!(short.contains("damaged at byte 28, after 0 packets: no valid block"), "{short}");
        assert!(short.len() < 300, "{short}");
        assert!(long.contains("at byte 28, after 0 packets: a block longer than 1 MiB"), "{long}");
    }

    #[test]
    fn a_read_error_is_not_the_end_of_the_capture() {
        let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).chain([0; 8]).collect();
        let (header, packet) = bytes.split_at(24);
        // Creating the reader takes two reads, of the header and of the packet; the third read, of
        // a directory, fails.
        let content = header.chain(packet).chain(File::open("/").unwrap());
        let error = parse(content, Path::new("near.pcap")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read near.pcap");
        assert!(parse(header.chain(packet), Path::new("near.pcap")).is_ok(), "truncated");
    }
}
