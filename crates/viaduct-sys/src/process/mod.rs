//! This process and its children: start, inherited state, end, and scheduling of threads.
//!
//! | module | content |
//! |---|---|
//! | `children` | child processes that are killed with this process; the descriptor limit |
//! | [`supervise`] | state changes of wrapped programs, and reaping of orphans |
//! | [`signals`] | signals as events |
//! | [`inherited_fds`] | descriptors from the service manager or from a parent process |
//! | [`inherited_state`] | other state from the parent, restored for programs that we start |
//! | [`confine`] | namespaces, Landlock and limits of this process |
//! | `landlock` | rules of Landlock |
//! | [`thread`] | priority, core and timer slack of a thread |
//! | [`memory`] | resident memory of this process |
//! | [`dir_lock`] | exclusive lock on a directory |
//! | [`static_link`] | host names in a statically linked program |
//! | `instance_lock` | one process per instance name and network namespace |
//! | [`tool`] | external programs: `nft` |

mod children;
pub mod confine;
pub mod dir_lock;
pub mod inherited_fds;
pub mod inherited_state;
pub(crate) mod instance_lock;
pub(crate) mod landlock;
pub mod memory;
pub mod signals;
pub mod static_link;
pub mod supervise;
pub mod thread;
pub mod tool;

pub(crate) use children::inherited_fd_limit;
pub use children::{Process, die_with_parent, raise_fd_limit, raise_hard_fd_limit};
