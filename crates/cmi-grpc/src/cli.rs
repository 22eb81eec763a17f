//! Flags, durations and signals for the programs of plugins. Behind the feature `cli`: a program that serves
//! its driver in another way needs none of this.

pub mod duration;
mod server_args;
pub mod signals;

pub use server_args::{ServerArgs, StartError};
