//! `capcmi`.
fn main() {}
