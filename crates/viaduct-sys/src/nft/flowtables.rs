//! Flowtables of all programs. The kernel forwards the packets of a flowtable's connections at the
//! ingress of its devices: the packets bypass the forward chain and the interfaces above these
//! devices. With the flag `offload` the hardware forwards the packets, and they bypass the kernel.

use std::io;

use netlink_packet_core::{NlaBuffer, NlasIterator};

use crate::route::netlink::{self, Message, NETFILTER_HEAD, NLM_F_DUMP};

// Netfilter's subsystem, and its messages (`linux/netfilter/nf_tables.h`).
const NFTABLES: u16 = 10;
const NEW_FLOWTABLE: u16 = 22;
const GET_FLOWTABLE: u16 = 23;
// Attributes of a flowtable.
const TABLE: u16 = 1;
const NAME: u16 = 2;
const HOOK: u16 = 3;
const FLAGS: u16 = 7;
/// Attribute of the hook: its devices, each a name or a prefix of names.
const DEVICES: u16 = 3;
/// Kind of a device that is a prefix of names.
const DEVICE_PREFIX: u16 = 2;
/// Flag for forwarding in hardware.
const HW_OFFLOAD: u32 = 1;

/// Flowtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Family, table and name, as in `inet fw4 ft`.
    pub name: String,
    /// Names of its devices; a final `*` matches any suffix.
    pub devices: Vec<String>,
    /// True if the hardware forwards packets (`flags offload`).
    pub is_hardware: bool,
}

impl Flowtable {
    /// Returns whether the flowtable has the device `name`.
    pub fn has(&self, name: &str) -> bool {
        self.devices.iter().any(|device| match device.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => device == name,
        })
    }
}

/// Returns the flowtables of the calling thread's network namespace.
///
/// # Errors
/// CAP_NET_ADMIN is missing, or the kernel has no nftables.
pub fn flowtables() -> io::Result<Vec<Flowtable>> {
    let question = Message::new(NFTABLES, GET_FLOWTABLE, NLM_F_DUMP, 0, 0);
    let mut found = Vec::new();
    netlink::exchange(netlink::socket()?, &question.bytes(), |kind, payload| {
        if kind == NFTABLES << 8 | NEW_FLOWTABLE {
            found.extend(parse(payload));
        }
    })??;
    Ok(found)
}

/// Parses a message's payload; `None` if it is incomplete.
fn parse(payload: &[u8]) -> Option<Flowtable> {
    let family = match payload.first()? {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        _ => "netdev",
    };
    let attributes = payload.get(NETFILTER_HEAD..)?;
    let (table, name) = (netlink::find(attributes, TABLE)?, netlink::find(attributes, NAME)?);
    let flags = netlink::find(attributes, FLAGS).and_then(|value| value.first_chunk().copied());
    let hook = netlink::find(attributes, HOOK)?;
    let devices = NlasIterator::new(netlink::find(hook, DEVICES).unwrap_or_default());
    let device = |device: &NlaBuffer<&[u8]>| {
        let end = if device.kind() == DEVICE_PREFIX { "*" } else { "" };
        text(device.value()) + end
    };
    Some(Flowtable {
        name: format!("{family} {} {}", text(table), text(name)),
        devices: devices.map_while(Result::ok).map(|one| device(&one)).collect(),
        is_hardware: flags.is_some_and(|flags| u32::from_be_bytes(flags) & HW_OFFLOAD != 0),
    })
}

/// Returns the text before the terminating NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::nft::table::nft;
    use crate::process::tool;
    use crate::route::netlink::{Attributes, messages};

    const HEAD: usize = 16;

    #[test]
    fn names_devices_and_flags_are_read() {
        let devices =
            Attributes::default().with(1, b"eth0\0").with(DEVICE_PREFIX, b"lan").with(1, b"eth1\0");
        let hook = Attributes::default().with(1, &[0; 4]).with(2, &[0; 4]).nest(DEVICES, &devices);
        let message = |flags: u32| {
            Message::new(NFTABLES, NEW_FLOWTABLE, 0, 1, 0)
                .with(TABLE, b"fw4\0")
                .with(NAME, b"ft\0")
                .nest(HOOK, &hook)
                .with(FLAGS, &flags.to_be_bytes())
                .bytes()
        };
        let read = |bytes: &[u8]| messages(bytes).find_map(|(_, payload)| parse(payload));
        let table = read(&message(HW_OFFLOAD)).unwrap();
        assert_eq!(table.name, "inet fw4 ft");
        assert_eq!(table.devices, ["eth0", "lan*", "eth1"]);
        assert!(table.is_hardware && !read(&message(2)).unwrap().is_hardware);
        assert!(table.has("eth1") && table.has("lan7") && !table.has("eth"));
        // Parsing a truncated message neither panics nor returns the flowtable.
        let whole = message(HW_OFFLOAD);
        for end in HEAD..whole.len() - 8 {
            assert_ne!(parse(&whole[HEAD..end]), Some(table.clone()), "{end}");
        }
    }

    #[test]
    fn the_kernels_flowtables_are_listed() {
        let work = || {
            assert!(flowtables().unwrap().is_empty());
            tool::run("ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "far0"], "")
                .unwrap();
            let hook = "hook ingress priority 0; devices = { eth0, far0 };";
            let made = nft(&format!("table inet fw4 {{ flowtable ft {{ {hook} }}; }}"));
            if let Err(error) = made {
                assert!(error.to_string().contains("Could not process rule"), "{error}");
                eprintln!("skipped: this kernel has no flowtables");
                return;
            }
            let listed = flowtables().unwrap();
            assert_eq!(listed.len(), 1, "{listed:?}");
            assert_eq!((&listed[0].name[..], listed[0].is_hardware), ("inet fw4 ft", false));
            assert!(listed[0].has("eth0") && listed[0].has("far0"), "{listed:?}");
        };
        Netns::new().unwrap().enter(work).unwrap();
    }
}
