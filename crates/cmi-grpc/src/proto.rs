//! Code generated from `proto/`.

/// The published interface.
pub mod cmi {
    /// Version 1.
    #[allow(clippy::all, clippy::pedantic, missing_docs)]
    pub mod v1 {
        tonic::include_proto!("cmi.v1");
    }
}

/// The extension of our own.
pub mod capcmi {
    /// Version 1.
    #[allow(clippy::all, clippy::pedantic, missing_docs)]
    pub mod v1 {
        tonic::include_proto!("capcmi.v1");
    }
}

/// Descriptors of all files, encoded as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");

#[cfg(test)]
mod tests;
