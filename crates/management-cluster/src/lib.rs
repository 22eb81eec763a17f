//! A real Cluster API management cluster as plain processes.
