//! Both planes combined, as in a site: FEC gateways below, the flow plane above.

pub(super) mod all;
