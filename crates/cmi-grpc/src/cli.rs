//! Flags, durations, signals, logs and configuration files for the programs of plugins. Behind the feature
//! `cli`: a program that serves its driver in another way needs none of this.

pub mod config_file;
pub mod duration;
mod program;
mod server_args;
pub mod signals;

pub use program::{ProgramArgs, main};
pub use server_args::{ServerArgs, StartError};
