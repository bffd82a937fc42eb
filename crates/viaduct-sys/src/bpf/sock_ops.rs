//! Context of `sock_ops` programs: fields of `struct bpf_sock_ops`, and callback codes.

use super::redirect::LocalEnd;

// Fields.
pub(super) const OP: i16 = 0;
pub(super) const FIRST_ARGUMENT: i16 = 4;
pub(super) const FAMILY: i16 = 20;
pub(super) const LOCAL_IP4: i16 = 28;
pub(super) const LOCAL_IP6: i16 = 48;
pub(super) const LOCAL_PORT: i16 = 68;
pub(super) const LOCAL_END: LocalEnd =
    LocalEnd { family: FAMILY, ip4: LOCAL_IP4, ip6: LOCAL_IP6, port: LOCAL_PORT };
pub(super) const FLAGS: i16 = 84;
pub(super) const SOCKET: i16 = 184;

// Callback codes.
pub(super) const CONNECT: u32 = 3;
pub(super) const ESTABLISHED: u32 = 4;
pub(super) const ACCEPTED: u32 = 5;
pub(super) const LISTENS: u32 = 11;
pub(super) const LENGTH: u32 = 14;
pub(super) const WRITE: u32 = 15;

/// Flag that enables option callbacks.
pub(super) const WANTS_OPTIONS: u32 = 1 << 6;
