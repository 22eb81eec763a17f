//! The file of a Unix socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Only this user may connect: the calls carry credentials.
const MODE: u32 = 0o600;

/// A socket's file. Dropping this value removes the file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Creates the file and listens. No other user can connect at any time: the mode is set before the socket
    /// listens.
    pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = Self {
            path: path.to_owned(),
            id: id(path)?,
        };
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        Ok((socket.listen(BACKLOG)?, file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}
