//! IP headers: parsing never reads beyond the bytes, and the fields that normalisation removes
//! suffice to restore the packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::wire::ip::{Header, MutableFields, internet_checksum, normalise, restore};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else { return };
    assert!(header.header_len <= header.total_len && header.total_len <= bytes.len());

    let original = &bytes[..header.total_len];
    let mut packet = original.to_vec();
    let fields = normalise(&mut packet);
    assert_eq!(Header::parse(&packet), Ok(header), "still the same packet");
    let normal = packet.clone();
    assert_eq!(normalise(&mut packet), MutableFields::default(), "nothing is left to remove");
    assert_eq!(packet, normal);

    restore(&mut packet, fields);
    let mut expected = original.to_vec();
    if original[0] >> 4 == 4 {
        assert_eq!(internet_checksum(&packet[..header.header_len]), 0);
        // The checksum is computed, not restored.
        expected[10..12].copy_from_slice(&packet[10..12]);
    }
    assert_eq!(packet, expected);
});
