//! The Common Machine Interface on real sockets: plugins in this process and in processes of their own.

mod calls;
mod deadlines;
mod errors;
mod process;
mod sockets;
mod support;
mod tls;
