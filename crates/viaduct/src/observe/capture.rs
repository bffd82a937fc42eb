//! Captures of traffic, as tcpdump and Wireshark write them.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

use super::packet::Packet;

/// Maximum length of a block in bytes.
const BUFFER: usize = 1 << 20;
/// Maximum number of packets of a capture; 100 bytes are kept of each.
const MAX_PACKETS: usize = 20_000_000;

/// Content of a capture.
#[derive(Debug, Default)]
pub struct Capture {
    /// IP packets in order of time.
    pub packets: Vec<Packet>,
    /// Number of packets that are not IP, or have too few captured bytes.
    others: usize,
    /// True if the file has more packets than are read.
    is_cut: bool,
}

impl Capture {
    /// Summary in one line.
    pub fn summary(&self) -> String {
        let cut = if self.is_cut { "; the rest of the file was not read" } else { "" };
        format!("{} IP packets, {} others{cut}", self.packets.len(), self.others)
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

/// Reads a capture. Fails if the file cannot be read, or is not a capture.
pub fn read(path: &Path) -> Result<Capture> {
    let what = || format!("{}: a capture (pcap or pcapng) is expected", path.display());
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut reader = create_reader(BUFFER, file).ok().with_context(what)?;
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
                // The last packet of an interrupted capture is often truncated.
                if reader.refill().is_err() || reader.reader_exhausted() {
                    break;
                }
            }
            Err(error) => bail!("{}: {error:?}", what()),
        }
    }
    capture.packets.sort_by_key(|packet| packet.at);
    Ok(capture)
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
        // A new section has interfaces of its own.
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(header)) => {
            interfaces.push(Interface {
                link: known(header.linktype)?,
                resolution: header.ts_resolution().unwrap_or(1_000_000),
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

/// IP packet behind the link-layer header.
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
    fn vlan_tags_and_headers_of_links_are_passed_over() {
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
}
