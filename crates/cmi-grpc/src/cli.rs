//! What the programs of plugins have in common: flags, times and signals. Behind the feature `cli`: a program
//! that serves its driver in another way needs none of it.

pub mod duration;
mod server_args;
pub mod signals;

pub use server_args::{ServerArgs, StartError};
