//! The Common Machine Interface on real sockets: plugins in this process and in child processes.

mod calls;
mod deadlines;
mod errors;
mod process;
mod sockets;
mod support;
mod tls;
