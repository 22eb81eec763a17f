//! The provider's own credentials for a driver: a directory with a mounted Secret.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cmi_driver::{SecretValue, Secrets, USER_DATA, USER_DATA_FORMAT};

/// The largest size of a Secret.
const MAX_BYTES: u64 = 1024 * 1024;
/// The symbolic link that the kubelet swaps when the Secret has changed.
const CURRENT: &str = "..data";
/// The number of attempts to read. The kubelet removes the version that it replaces, so a read that began
/// earlier has to start again.
const TRIES: usize = 3;

/// A directory with one file for each key, as in a Secret volume.
///
/// # Guarantees
/// Every read returns the current content, so that a renewal needs no restart. The keys of one read belong
/// together, even while the kubelet swaps them. Values are never kept or printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialsDirectory {
    path: PathBuf,
}

/// Why the provider's credentials can't be used. Shows no value.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCredentials {
    /// The directory or a file of it can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory has no file.
    #[error("{} has no files: mount a Secret with the driver's credentials there", .0.display())]
    Empty(PathBuf),
    /// An entry of the directory is not a file.
    #[error("{} is not a file: every key of the credentials must be a file, as in a Secret volume without \
        `items`", .0.display())]
    NoFile(PathBuf),
    /// A file name is not a valid key.
    #[error("{} is not a valid key: use only letters, digits, `-`, `_` and `.`", .0.display())]
    Key(PathBuf),
    /// The key is reserved for the bootstrap data.
    #[error("{} is reserved for bootstrap data: rename the key", .0.display())]
    Reserved(PathBuf),
    /// The directory holds more than any Secret can.
    #[error("{} has more than 1 MiB, the limit of a Secret", .0.display())]
    Large(PathBuf),
}

impl CredentialsDirectory {
    /// Returns the directory without reading it.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads all keys with their current values. Blocks for a moment: see [`CredentialsDirectory::get`].
    ///
    /// # Errors
    /// [`InvalidCredentials`], with the path.
    pub fn read(&self) -> Result<Secrets, InvalidCredentials> {
        let mut tries = 1;
        loop {
            match self.read_current() {
                Err(InvalidCredentials::Read { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < TRIES =>
                {
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    /// Reads the same on a blocking thread, outside the async workers.
    ///
    /// # Errors
    /// As [`CredentialsDirectory::read`].
    pub async fn get(&self) -> Result<Secrets, InvalidCredentials> {
        let directory = self.clone();
        let read = tokio::task::spawn_blocking(move || directory.read()).await;
        read.unwrap_or_else(|error| {
            Err(InvalidCredentials::Read {
                path: self.path.clone(),
                source: io::Error::other(error),
            })
        })
    }

    /// Reads all keys of the version that the link points at now, so that no key is of another version.
    fn read_current(&self) -> Result<Secrets, InvalidCredentials> {
        let current = self.current()?;
        let mut room = MAX_BYTES;
        let mut secrets = Vec::new();
        for entry in fs::read_dir(&current).map_err(|source| failed(&self.path, source))? {
            let entry = entry.map_err(|source| failed(&self.path, source))?;
            let name = entry.file_name();
            let shown = self.path.join(&name);
            let Some(key) = name.to_str().filter(|key| is_key(key)) else {
                // An entry of the kubelet, before the link exists.
                if name.as_encoded_bytes().starts_with(b"..") {
                    continue;
                }
                return Err(InvalidCredentials::Key(shown));
            };
            if [USER_DATA, USER_DATA_FORMAT].contains(&key) {
                return Err(InvalidCredentials::Reserved(shown));
            }
            let metadata = fs::metadata(entry.path()).map_err(|source| failed(&shown, source))?;
            if !metadata.is_file() {
                return Err(InvalidCredentials::NoFile(shown));
            }
            room = room
                .checked_sub(metadata.len())
                .ok_or_else(|| InvalidCredentials::Large(self.path.clone()))?;
            let value = fs::read(entry.path()).map_err(|source| failed(&shown, source))?;
            secrets.push((key.to_owned(), SecretValue::from(value)));
        }
        // The kubelet moves the link before it removes the previous version, so keys may have been missing
        // already.
        if self.current()? != current {
            return Err(failed(&self.path, io::ErrorKind::NotFound.into()));
        }
        if secrets.is_empty() {
            return Err(InvalidCredentials::Empty(self.path.clone()));
        }
        Ok(secrets.into_iter().collect())
    }

    fn current(&self) -> Result<PathBuf, InvalidCredentials> {
        let link = self.path.join(CURRENT);
        match fs::symlink_metadata(&link) {
            Ok(_) => fs::canonicalize(&link).map_err(|source| failed(&link, source)),
            // A plain directory, or a volume that the kubelet has not filled yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.path.clone()),
            Err(source) => Err(failed(&link, source)),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> InvalidCredentials {
    InvalidCredentials::Read {
        path: path.to_owned(),
        source,
    }
}

/// Whether the API server accepts the name as a key.
fn is_key(name: &str) -> bool {
    !name.starts_with("..")
        && name.len() <= 253
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a directory as the kubelet mounts a Secret: a link to a link to the current version.
    fn mount(version: &str, keys: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), version, keys);
        for (key, _) in keys {
            symlink(Path::new(CURRENT).join(key), root.path().join(key)).unwrap();
        }
        root
    }

    fn swap(root: &Path, version: &str, keys: &[(&str, &str)]) {
        let version = format!("..{version}");
        fs::create_dir(root.join(&version)).unwrap();
        for (key, value) in keys {
            fs::write(root.join(&version).join(key), value).unwrap();
        }
        symlink(&version, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join(CURRENT)).unwrap();
    }

    fn read(root: &Path) -> Vec<(String, String)> {
        let secrets = CredentialsDirectory::new(root.to_owned()).read().unwrap();
        let text = |value: &SecretValue| String::from_utf8(value.expose().to_vec()).unwrap();
        secrets
            .iter()
            .map(|(key, value)| (key.to_owned(), text(value)))
            .collect()
    }

    fn refused(root: &Path) -> String {
        let error = CredentialsDirectory::new(root.to_owned()).read().unwrap_err();
        error.to_string()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_mounted_secret_is_read_as_it_is_now() {
        let root = mount("1", &[("token", "old"), ("user", "a")]);
        assert_eq!(read(root.path()), pairs(&[("token", "old"), ("user", "a")]));
        swap(root.path(), "2", &[("token", "new"), ("user", "b")]);
        assert_eq!(read(root.path()), pairs(&[("token", "new"), ("user", "b")]));
    }

    /// A mix of two versions would be the credentials of no account.
    #[test]
    fn the_keys_of_one_read_belong_together_while_they_are_swapped() {
        let keys = |value: &'static str| [("a", value), ("b", value), ("c", value)];
        let root = mount("0", &keys("0"));
        let path = root.path().to_owned();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 1..200 {
                    swap(
                        &path,
                        &version.to_string(),
                        &keys(if version % 2 == 0 { "0" } else { "1" }),
                    );
                    fs::remove_dir_all(path.join(format!("..{}", version - 1))).unwrap();
                }
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let Ok(secrets) = CredentialsDirectory::new(path.clone()).read() else {
                    continue;
                };
                let values: Vec<_> = secrets.iter().map(|(_, value)| value.expose()).collect();
                assert_eq!(values.len(), 3);
                assert!(
                    values.iter().all(|value| *value == values[0]),
                    "two versions in one read"
                );
            }
        });
    }

    #[test]
    fn a_plain_directory_is_read_as_well() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("token"), "x").unwrap();
        assert_eq!(read(root.path()), pairs(&[("token", "x")]));
    }

    /// Files beside the link are not a version that the kubelet made.
    #[test]
    fn a_link_that_can_not_be_looked_at_does_not_count_as_none() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(refused(&file).contains("..data"));
    }

    /// OPS-13
    #[test]
    fn what_can_be_no_credentials_is_refused_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        assert!(refused(root.path()).contains("has no file"));
        assert!(refused(&root.path().join("nowhere")).contains("nowhere"));
        for (name, why) in [
            ("userData", "reserved for bootstrap data"),
            ("userDataFormat", "reserved for bootstrap data"),
            ("a b", "not a valid key"),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join(name), "canary-4711").unwrap();
            let error = refused(root.path());
            assert!(error.contains(name) && error.contains(why), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
        let nested = tempfile::tempdir().unwrap();
        fs::create_dir(nested.path().join("deep")).unwrap();
        assert!(refused(nested.path()).contains("is not a file"));
        let large = tempfile::tempdir().unwrap();
        let file = fs::File::create(large.path().join("token")).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        assert!(refused(large.path()).contains("1 MiB"));
    }
}
