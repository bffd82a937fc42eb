//! Both planes at once, as a site has them: FEC gateways below, the flow plane above.

pub(super) mod all;
