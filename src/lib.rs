//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
pub mod driver;
pub mod drivers;
