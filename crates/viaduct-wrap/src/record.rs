//! Fields of records: bytes and addresses.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::rules::mapped;

/// Bytes of an address in a record.
pub const ADDRESS: usize = 24;

/// Writer of a record. The buffer must have room for all fields.
#[derive(Debug)]
pub struct Writer<'a> {
    /// Unused rest of the buffer.
    pub bytes: &'a mut [u8],
}

impl Writer<'_> {
    /// Writes bytes. Panics if the buffer has no room for them.
    pub fn put(&mut self, bytes: &[u8]) {
        let (at, rest) = std::mem::take(&mut self.bytes).split_at_mut(bytes.len());
        at.copy_from_slice(bytes);
        self.bytes = rest;
    }

    /// Writes an address; the field is empty if there is none. Panics if the buffer has no room
    /// for the field.
    pub fn address(&mut self, address: Option<SocketAddr>) {
        let Some(address) = address else { return self.put(&[0; ADDRESS]) };
        let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
        self.put(&mapped(address.ip()).octets());
        self.put(&address.port().to_be_bytes());
        self.put(&[1, 0]);
        self.put(&scope.to_ne_bytes());
    }
}

/// Reader of a record.
#[derive(Debug)]
pub struct Reader<'a> {
    /// Unread rest of the record.
    pub bytes: &'a [u8],
}

impl Reader<'_> {
    /// Reads bytes; `None` if the record is too short.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*taken)
    }

    /// Reads a byte; `None` if the record is too short.
    pub fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Reads an address; `Some(None)` if the field is empty, `None` if the record is too short.
    pub fn address(&mut self) -> Option<Option<SocketAddr>> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        let port = u16::from_be_bytes(self.take()?);
        let [is, _] = self.take()?;
        let scope = self.take().map(u32::from_ne_bytes)?;
        if is == 0 {
            return Some(None);
        }
        Some(Some(match ip.to_ipv4_mapped() {
            Some(v4) => (v4, port).into(),
            None => SocketAddrV6::new(ip, port, 0, scope).into(),
        }))
    }
}
